"""A function whose i-th call fails, as SQLite tests its own: every place that can fail has failed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class FailingCall:
    """Takes the place of `owner.name` (an object's or a class's), which otherwise goes on as before.

    It fails before it does anything: whoever is called and fails takes nothing.
    """

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, make_error: Callable[[], Exception]) -> None:
        self.was_reached = False
        self._num_left = 0  # calls until the failure; 0: none will fail
        self._make_error = make_error
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._count()
            return original(*arguments, **named)

        patch.setattr(owner, name, call)

    def fail_at(self, i: int) -> None:
        """From now on; 1 is the next call."""
        self.was_reached, self._num_left = False, i

    def _count(self) -> None:
        self._num_left -= 1
        if self._num_left == 0:
            self.was_reached = True
            raise self._make_error()
