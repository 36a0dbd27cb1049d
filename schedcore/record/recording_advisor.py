"""An advisor that writes a decision record of its own life (schedcore/record/decision_record.py).

What an engine of its own memory tells of a step, how many blocks are free and who runs, is in the arguments of the
calls: with them another advisor decides the same.
"""

from __future__ import annotations

import hashlib
import secrets
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from schedcore._core import Advisor, CoreError
from schedcore.record.decision_record import FORMAT, AdviceResult, AdvisorCall, Header, RecordError, RecordWriter
from schedcore.record.recipe import Recipe
from schedcore.record.recording_scheduler import DIGEST_BYTES, Int32, int32_array, int32_bytes

Result = AdviceResult | int | None
PROMPT_METHODS = ("add_request", "accepts")  # whose first argument is one
METHODS = (
    *(*PROMPT_METHODS, "set_cached", "remove", "compose", "compose_known"),
    *("note_scheduled", "note_advised", "note_preempted", "commit", "commit_expected"),
)


class RecordingAdvisor(Advisor):
    """Made by the recipe of an Advisor, advises as that one would, and records every call that may change its state.

    close() ends the record; so do collection and the exit of the interpreter. Calls after it are not recorded.
    """

    def __init__(self, recipe: Recipe, path: Path) -> None:
        """Raises ValueError or TypeError for a wrong recipe, ValueError if the file cannot be written."""
        super().__init__(**recipe.build_arguments())
        self._salt_key = secrets.token_bytes(32)
        self._writer = RecordWriter(path, Header(FORMAT, recipe, [], []))
        self.close = weakref.finalize(self, self._writer.close)

    def add_request(self, *arguments: Any, **options: Any) -> int:
        if salt := options.get("cache_salt"):
            hidden = hashlib.blake2b(salt.encode(), digest_size=16, key=self._salt_key).hexdigest()
            options = {**options, "cache_salt": hidden}
        slot: int = self._recorded(super().add_request, *arguments, **options)
        return slot

    def accepts(self, *arguments: Any, **options: Any) -> bool:
        return bool(self._recorded(super().accepts, *arguments, **options))

    def set_cached(self, *arguments: Any, **options: Any) -> None:
        self._recorded(super().set_cached, *arguments, **options)

    def remove(self, *arguments: Any, **options: Any) -> None:
        self._recorded(super().remove, *arguments, **options)

    def compose(self, *arguments: Any, **options: Any) -> tuple[int, int, Int32, Int32, Int32, Int32, Int32]:
        advice: tuple[int, int, Int32, Int32, Int32, Int32, Int32]
        advice = self._recorded(super().compose, *arguments, **options)
        self._writer.flush()  # what is executed next may take long, or all down
        return advice

    def compose_known(
        self, *arguments: Any, **options: Any
    ) -> tuple[int, int, Int32, Int32, Int32, Int32, Int32] | None:
        advice: tuple[int, int, Int32, Int32, Int32, Int32, Int32] | None
        advice = self._recorded(super().compose_known, *arguments, **options)
        self._writer.flush()
        return advice

    def note_scheduled(self, *arguments: Any, **options: Any) -> None:
        self._recorded(super().note_scheduled, *arguments, **options)

    def note_advised(self, *arguments: Any, **options: Any) -> None:
        self._recorded(super().note_advised, *arguments, **options)

    def note_preempted(self, *arguments: Any, **options: Any) -> None:
        self._recorded(super().note_preempted, *arguments, **options)

    def commit(self, *arguments: Any, **options: Any) -> None:
        self._recorded(super().commit, *arguments, **options)

    def commit_expected(self, *arguments: Any, **options: Any) -> bool:
        return bool(self._recorded(super().commit_expected, *arguments, **options))

    def _recorded(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Failures of the core too. Other exceptions are wrong arguments, which change nothing."""
        name = method.__name__
        if name in PROMPT_METHODS:
            arguments = (np.frombuffer(int32_bytes(arguments[0]), np.int32), *arguments[1:])
        call = partial(AdvisorCall, name, [_plain(value) for value in arguments], options)
        try:
            returned = method(*arguments, **options)
        except CoreError as error:
            self._writer.append(call(None, str(error)))
            self._writer.flush()
            raise
        self._writer.append(call(advisor_result(returned)))
        return returned


def invocation(advisor: Advisor, call: AdvisorCall) -> Callable[[], Any]:
    """The call on another advisor. Raises RecordError: advisors have no such call."""
    if call.method not in METHODS:
        raise RecordError(f"an advisor has no call {call.method!r}")
    arguments = [int32_array(value) if isinstance(value, bytes) else value for value in call.arguments]
    return partial(getattr(advisor, call.method), *arguments, **call.options)


def advisor_result(returned: Any) -> Result:
    if not isinstance(returned, tuple):
        return returned if returned is None else int(returned)
    num_tokens, num_granted, preempted, admitted = returned[:4]
    digest = hashlib.blake2b(b"%d %d" % (num_tokens, num_granted), digest_size=DIGEST_BYTES)
    for column in returned[2:]:
        digest.update(b" %d " % len(column))
        digest.update(column.tobytes())
    return AdviceResult(digest.digest(), num_granted, num_tokens, len(admitted), len(preempted))


def _plain(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value
