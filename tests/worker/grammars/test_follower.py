"""The thread of masks: what it borrows it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import numpy as np
import pytest

from worker import ops
from worker.grammars.follower import _MANY, Follower


class FakeMatcher:
    """Waits until it is let go on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_go_on, self._error = Event(), error
        self.wants_mask = True
        self.tokens: list[int] = []
        self.num_masks = 0

    def advance(self, token: int) -> None:
        self.may_go_on.wait()
        self.tokens.append(token)

    def find_mask(self) -> None:
        self.may_go_on.wait()
        self.num_masks += 1
        if self._error is not None:
            raise self._error


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """+1 for each CPU that is lent, -1 for each that is given back."""
    calls: list[int] = []
    monkeypatch.setattr(ops, "lend_cpu", lambda: calls.append(1))
    monkeypatch.setattr(ops, "take_cpu_back", lambda: calls.append(-1))
    return calls


@pytest.fixture
def follower() -> Iterator[Follower]:
    follower = Follower()
    yield follower
    follower.close()


def test_kernels_lend_a_cpu_while_many_matchers_are_followed(follower: Follower, lent: list[int]) -> None:
    first, second = ([FakeMatcher() for _ in range(_MANY)] for _ in range(2))
    follower.begin(first, np.full(_MANY, 7, np.int32))  # type: ignore[arg-type]
    follower.begin_masks(second)  # type: ignore[arg-type]
    assert lent == [1, 1]
    for matcher in [*first, *second]:
        matcher.may_go_on.set()
    follower.wait()
    assert lent == [1, 1, -1, -1]
    assert all((matcher.tokens, matcher.num_masks) == ([7], 1) for matcher in first)
    assert all((matcher.tokens, matcher.num_masks) == ([], 1) for matcher in second)


def test_for_a_few_they_do_not(follower: Follower, lent: list[int]) -> None:
    matcher = FakeMatcher()
    matcher.may_go_on.set()
    follower.begin_masks([matcher] * (_MANY - 1))  # type: ignore[list-item]
    follower.wait()
    assert matcher.num_masks == _MANY - 1
    assert not lent


def test_it_is_given_back_when_a_mask_fails(follower: Follower, lent: list[int]) -> None:
    matcher = FakeMatcher(RuntimeError("broken"))
    matcher.may_go_on.set()
    follower.begin_masks([matcher] * _MANY)  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match="broken"):
        follower.wait()
    assert lent == [1, -1]
