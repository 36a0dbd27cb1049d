"""A scheduler that writes a decision record of its own life (schedcore/record/decision_record.py)."""

from __future__ import annotations

import hashlib
import secrets
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import AddStatus, BatchPlan, CoreError, Scheduler, StepOutput
from schedcore.record.decision_record import (
    FORMAT,
    AbortCall,
    AddCall,
    AdviseCall,
    Call,
    CommitCall,
    DiskCall,
    ForceCall,
    Header,
    MovesCall,
    OutputResult,
    PeerCall,
    PeerSessionCall,
    PlanResult,
    RecordWriter,
    RememberCall,
    ResetCall,
    ScheduleCall,
    SuggestCall,
)
from schedcore.record.recipe import Recipe

Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

DIGEST_BYTES = 8  # per field
_INT32 = range(-(2**31), 2**31)


class RecordingScheduler(Scheduler):
    """Made by the recipe of a Scheduler, decides as that one would, and records every call that may change its state.

    close() ends the record; so do collection and the exit of the interpreter. Calls after it are not recorded.
    """

    def __init__(self, recipe: Recipe, path: Path) -> None:
        """Raises ValueError or TypeError for a wrong recipe, ValueError if the file cannot be written."""
        super().__init__(**recipe.build_arguments())
        self._plan_fields, self._output_fields = field_names(BatchPlan), field_names(StepOutput)
        self._salt_key = secrets.token_bytes(32)
        self._writer = RecordWriter(path, Header(FORMAT, recipe, self._plan_fields, self._output_fields))
        self.close = weakref.finalize(self, self._writer.close)

    def add_request(self, request_id: int, prompt_token_ids: Sequence[int] | Int32, **options: Any) -> AddStatus:
        options = self._without_salt(options)
        with self._recorded_failure(lambda error: self._add_call(request_id, prompt_token_ids, options, None, error)):
            status = super().add_request(request_id, prompt_token_ids, **options)
        self._writer.append(self._add_call(request_id, prompt_token_ids, options, status.name))
        return status

    def abort(self, request_id: int) -> bool:
        with self._recorded_failure(lambda error: AbortCall(request_id, None, error)):
            was_live = super().abort(request_id)
        self._writer.append(AbortCall(request_id, was_live))
        return was_live

    def force(self, request_id: int, token_ids: Sequence[int] | Int32) -> bool:
        ids = int32_bytes(token_ids)
        with self._recorded_failure(lambda error: ForceCall(request_id, ids, None, error)):
            is_live = super().force(request_id, token_ids)
        self._writer.append(ForceCall(request_id, ids, is_live))
        return is_live

    def suggest(self, request_id: int, token_ids: Sequence[int] | Int32) -> bool:
        ids = int32_bytes(token_ids)
        with self._recorded_failure(lambda error: SuggestCall(request_id, ids, None, error)):
            is_live = super().suggest(request_id, token_ids)
        self._writer.append(SuggestCall(request_id, ids, is_live))
        return is_live

    def schedule(self, now: float) -> BatchPlan:
        with self._recorded_failure(lambda error: ScheduleCall(now, None, error)):
            plan = super().schedule(now)
        self._writer.append(ScheduleCall(now, plan_result(plan, self._plan_fields)))
        self._writer.flush()  # what is executed next may take long, or all down
        return plan

    def commit(self, sampled_token_ids: Int32, now: float) -> StepOutput:
        with self._recorded_failure(lambda error: CommitCall(int32_bytes(sampled_token_ids), now, None, error)):
            output = super().commit(sampled_token_ids, now)
        result = output_result(output, self._output_fields)
        self._writer.append(CommitCall(int32_bytes(sampled_token_ids), now, result))
        return output

    def reset_prefix_cache(self) -> int:
        with self._recorded_failure(lambda error: ResetCall(None, error)):
            num_blocks = super().reset_prefix_cache()
        self._writer.append(ResetCall(num_blocks))
        return num_blocks

    def complete_moves(self, done: Sequence[int] | Int32, failed: Sequence[int] | Int32 = ()) -> None:
        ids = [int(i) for i in done], [int(i) for i in failed]
        with self._recorded_failure(lambda error: MovesCall(*ids, None, error)):
            super().complete_moves(done, failed)
        self._writer.append(MovesCall(*ids))

    def note_on_disk(self, keys: UInt64) -> None:
        super().note_on_disk(keys)
        self._writer.append(DiskCall(key_bytes(keys), True))

    def forget_on_disk(self, keys: UInt64) -> None:
        super().forget_on_disk(keys)
        self._writer.append(DiskCall(key_bytes(keys), False))

    def advise(
        self, session_id: str, event: int, now: float, **options: Any
    ) -> tuple[bool, int, list[int], int, float | None]:
        options = self._without_salt(options)
        plain = {name: _plain(value) for name, value in options.items()}
        with self._recorded_failure(lambda error: AdviseCall(session_id, event, now, plain, None, error)):
            report = super().advise(session_id, event, now, **options)
        self._writer.append(AdviseCall(session_id, event, now, plain, [*report]))
        return report

    def remember_session(self, session_id: str, token_ids: Sequence[int] | Int32, **options: Any) -> bool:
        named = self._without_salt(options)
        ids = int32_bytes(token_ids)
        with self._recorded_failure(lambda error: RememberCall(session_id, ids, named, None, error)):
            is_new = super().remember_session(session_id, token_ids, **named)
        self._writer.append(RememberCall(session_id, ids, named, is_new))
        return is_new

    def note_on_peer(self, keys: UInt64, peer: int) -> None:
        super().note_on_peer(keys, peer)
        self._writer.append(PeerCall("note_on_peer", key_bytes(keys), [peer]))

    def forget_peer(self, peer: int) -> None:
        super().forget_peer(peer)
        self._writer.append(PeerCall("forget_peer", None, [peer]))

    def note_peer_rate(self, peer: int, bytes_per_second: float) -> None:
        super().note_peer_rate(peer, bytes_per_second)
        self._writer.append(PeerCall("note_peer_rate", None, [peer, bytes_per_second]))

    def lend(self, keys: UInt64) -> Int32:
        slots = super().lend(keys)
        self._writer.append(PeerCall("lend", key_bytes(keys), [], slots.tobytes()))
        return slots

    def take_back(self, keys: UInt64) -> None:
        with self._recorded_failure(lambda error: PeerCall("take_back", key_bytes(keys), [], None, error)):
            super().take_back(keys)
        self._writer.append(PeerCall("take_back", key_bytes(keys), []))

    def adopt_session(self, session_id: str, token_ids: Sequence[int] | Int32, **options: Any) -> bool:
        """A session under a salt has other keys here, where the salt is its digest: its blocks are at no peer."""
        named = self._without_salt(options)
        ids = int32_bytes(token_ids)
        with self._recorded_failure(lambda error: PeerSessionCall(session_id, ids, named, None, error)):
            is_taken = super().adopt_session(session_id, token_ids, **named)
        self._writer.append(PeerSessionCall(session_id, ids, named, int(is_taken)))
        return is_taken

    def pull_session(self, session_id: str, **options: Any) -> int:
        named = self._without_salt(options)
        with self._recorded_failure(lambda error: PeerSessionCall(session_id, None, named, None, error)):
            num_blocks = super().pull_session(session_id, **named)
        self._writer.append(PeerSessionCall(session_id, None, named, num_blocks))
        return num_blocks

    def session_tokens(self, session_id: str, **options: Any) -> Int32:
        """Changes nothing, so it is not recorded."""
        return super().session_tokens(session_id, **self._without_salt(options))

    @contextmanager
    def _recorded_failure(self, call: Callable[[str], Call]) -> Iterator[None]:
        """Of the core itself. Other exceptions are wrong arguments, which change nothing."""
        try:
            yield
        except CoreError as error:
            self._writer.append(call(str(error)))
            self._writer.flush()
            raise

    @staticmethod
    def _add_call(
        request_id: int,
        prompt_token_ids: Sequence[int] | Int32,
        options: dict[str, Any],
        status: str | None,
        error: str | None = None,
    ) -> AddCall:
        plain = {name: _plain(value) for name, value in options.items()}
        return AddCall(request_id, int32_bytes(prompt_token_ids), plain, status, error)

    def _without_salt(self, options: dict[str, Any]) -> dict[str, Any]:
        """The same with the salt's digest in its place."""
        salt = options.get("cache_salt")
        if not salt:
            return options
        return {**options, "cache_salt": hashlib.blake2b(salt.encode(), digest_size=16, key=self._salt_key).hexdigest()}


# ---- results ----


def field_names(kind: type[BatchPlan] | type[StepOutput]) -> list[str]:
    return sorted(name for name, value in vars(kind).items() if isinstance(value, property))


def plan_result(plan: BatchPlan, fields: Sequence[str]) -> PlanResult:
    sizes = plan.num_seqs, plan.num_tokens, len(plan.sample_seqs), len(plan.preempted_ids)
    return PlanResult(digests(plan, fields), *sizes)


def output_result(output: StepOutput, fields: Sequence[str]) -> OutputResult:
    num_finished = int(np.count_nonzero(output.finish_reasons))
    return OutputResult(digests(output, fields), len(output.request_ids), num_finished)


def digests(result: BatchPlan | StepOutput, fields: Sequence[str]) -> bytes:
    """DIGEST_BYTES per field. Raises AttributeError if there is no such field."""
    return b"".join(_digest(getattr(result, name)) for name in fields)


def _digest(value: Any) -> bytes:
    data = value.data if isinstance(value, np.ndarray) else msgspec.msgpack.encode(value)
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


# ---- arguments ----


def int32_bytes(token_ids: Sequence[int] | Int32) -> bytes:
    """As the core reads them: what is no int32 becomes -1."""
    if isinstance(token_ids, np.ndarray) and token_ids.dtype == np.int32:
        return token_ids.tobytes()
    try:
        return array("i", token_ids).tobytes()
    except OverflowError:
        return array("i", (token if token in _INT32 else -1 for token in token_ids)).tobytes()


def int32_array(data: bytes) -> Int32:
    return np.frombuffer(data, np.int32)


def key_array(data: bytes) -> UInt64:
    return np.frombuffer(data, "<u8").reshape(-1, 2)


def key_bytes(keys: UInt64) -> bytes:
    return keys.astype("<u8").tobytes()


def _plain(value: Any) -> Any:
    """As msgpack takes it."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [token if token in _INT32 else -1 for token in value]
    return value
