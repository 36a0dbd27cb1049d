"""Replays a decision record through a fresh scheduler, or advisor: the same calls must lead to the same decisions.

The first call whose result differs ends the replay, since the two schedulers are no longer in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from schedcore._core import Advisor, BatchPlan, CoreError, Scheduler, StepOutput
from schedcore.record.decision_record import (
    AbortCall,
    AddCall,
    AdviceResult,
    AdviseCall,
    AdvisorCall,
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
    RecordError,
    RecordReader,
    RememberCall,
    ResetCall,
    ScheduleCall,
    SchedulerCall,
    SuggestCall,
)
from schedcore.record.recording_advisor import advisor_result, invocation
from schedcore.record.recording_scheduler import (
    DIGEST_BYTES,
    field_names,
    int32_array,
    key_array,
    output_result,
    plan_result,
)

BYTES_PER_REPORT = 1 << 18  # between two reports of progress

Progress = Callable[[int, int], None]  # KiB read, all KiB
Observer = Callable[[Call, Any], None]  # a call and what it returned: its plan or output, while they are valid


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision that the replay took differently."""

    step: int  # 1 is the first that computed something; a call before the first step has 0
    call: int  # 1 is the record's first
    what: str  # the call, and the fields that differ
    recorded: str  # for people
    replayed: str


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What was replayed, up to the difference if there is one."""

    record: str
    policy: str
    ending: str  # of the record: closed, open, cut off, damaged; "not read" after a difference
    num_unread_bytes: int
    num_calls: int
    num_steps: int  # that computed something
    num_requests: int  # accepted
    num_refused: int
    num_aborts: int
    num_output_tokens: int
    num_preemptions: int
    duration_s: float  # on the engine's clock, from the first schedule() to the last commit()
    is_identical: bool
    difference: Difference | None


@dataclass(slots=True)
class _Tally:
    num_calls: int = 0
    num_steps: int = 0
    num_requests: int = 0
    num_refused: int = 0
    num_aborts: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0

    def count(self, call: Call) -> None:
        match call:
            case AddCall():
                self.num_requests += call.result == "OK"
                self.num_refused += call.result not in ("OK", None)
            case AbortCall():
                self.num_aborts += call.result is True
            case ScheduleCall(result=PlanResult() as plan):
                self.num_steps += plan.num_seqs > 0
                self.num_preemptions += plan.num_preempted
            case CommitCall(result=OutputResult() as output):
                self.num_output_tokens += output.num_sampled
            case AdvisorCall():
                self._count_advised(call)

    def _count_advised(self, call: AdvisorCall) -> None:
        match call.method, call.arguments, call.result:
            case "add_request", _, int():
                self.num_requests += 1
            case "accepts", _, 0:
                self.num_refused += 1
            case "remove", [_, False], _:
                self.num_aborts += 1
            case "compose" | "compose_known", _, AdviceResult() as advice:
                self.num_preemptions += advice.num_preempted
            case "note_scheduled" | "note_advised", _, _:
                self.num_steps += call.error is None
            case "commit", [_, _, bytes() as counts], _:
                self.num_output_tokens += int(int32_array(counts).sum())
            case "commit_expected", [_, int() as num_outputs], 1:
                self.num_output_tokens += num_outputs


def replay(path: Path, on_progress: Progress | None = None, observe: Observer | None = None) -> Replay:
    """Raises RecordError if the file is no record, or of a scheduler that this version does not have; OSError."""
    report = on_progress or (lambda done, total: None)
    tally, difference, reported = _Tally(), None, 0
    first_s = last_s = None
    with RecordReader(path) as reader:
        replayer = _Replayer(path, reader.header)
        for call in reader.calls():
            tally.num_calls += 1
            tally.count(call)
            if (now := _time_of(call)) is not None:
                first_s, last_s = now if first_s is None else first_s, now
            difference = replayer.check(call, tally, observe)
            if difference is not None:
                break
            if reader.num_read_bytes - reported >= BYTES_PER_REPORT:
                reported = reader.num_read_bytes
                report(reported >> 10, reader.num_bytes >> 10)
        return Replay(
            record=str(path),
            policy=str(reader.header.scheduler.argument("config", "policy") or "the core's default"),
            ending="not read" if reader.ending is None else reader.ending.value,
            num_unread_bytes=max(0, reader.num_bytes - reader.num_read_bytes),
            **{name: getattr(tally, name) for name in _Tally.__slots__},
            duration_s=0.0 if first_s is None or last_s is None else last_s - first_s,
            is_identical=difference is None,
            difference=difference,
        )


def _time_of(call: Call) -> float | None:
    """Of the beginning or the end of a step."""
    match call:
        case ScheduleCall() | CommitCall():
            return call.now
        case AdvisorCall(
            method="compose" | "compose_known" | "commit" | "commit_expected", arguments=[float() as now, *_]
        ):
            return now
        case _:
            return None


_ABOUT_PEERS = frozenset({"note_on_peer", "forget_peer", "note_peer_rate", "lend", "take_back"})


def _call_about_peer(scheduler: Scheduler, call: PeerCall) -> Any:
    """Raises ValueError: it is no such call."""
    if call.method not in _ABOUT_PEERS:
        raise ValueError(f"there is no {call.method}()")
    numbers = [int(number) if number.is_integer() and i == 0 else number for i, number in enumerate(call.numbers)]
    return getattr(scheduler, call.method)(*([] if call.keys is None else [key_array(call.keys)]), *numbers)


class _Replayer:
    """A fresh scheduler, or advisor, that takes the calls of a record."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises RecordError."""
        self._plan_fields, self._output_fields = header.plan_fields, header.output_fields
        missing = {*header.plan_fields} - {*field_names(BatchPlan)} | {*header.output_fields} - {
            *field_names(StepOutput)
        }
        if missing:
            raise RecordError(
                f"{path} compares what this version's scheduler does not say: {', '.join(sorted(missing))}"
            )
        try:
            self._scheduler = header.scheduler.build()
        except (TypeError, ValueError) as error:
            raise RecordError(f"{path} is of a scheduler that this version cannot make: {error}") from None
        if not isinstance(self._scheduler, Scheduler | Advisor):
            raise RecordError(f"{path} is the record of a {header.scheduler.kind}, not of a Scheduler or an Advisor")

    def check(self, call: Call, tally: _Tally, observe: Observer | None) -> Difference | None:
        invoke, summarize = self._invocation(call)
        error = returned = result = None
        try:
            returned = invoke()
            result = summarize(returned)
        except (CoreError, TypeError, ValueError) as raised:
            error = f"{type(raised).__name__}: {raised}" if not isinstance(raised, CoreError) else str(raised)
        if (result, error) == (call.result, call.error):
            if observe is not None:
                observe(call, returned)
            return None
        return Difference(
            step=tally.num_steps,
            call=tally.num_calls,
            what=self._what_differs(call, result),
            recorded=_in_words(call.result, call.error),
            replayed=_in_words(result, error),
        )

    def _invocation(self, call: Call) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        """What to call, and how its result is recorded. Raises RecordError: it is a call of something else."""
        if isinstance(call, AdvisorCall) is not isinstance(self._scheduler, Advisor):
            raise RecordError(f"a record of a {type(self._scheduler).__name__} has calls of something else")
        if isinstance(call, AdvisorCall):
            return invocation(self._scheduler, call), advisor_result
        return self._scheduler_invocation(call)

    def _scheduler_invocation(self, call: SchedulerCall) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        scheduler = self._scheduler
        match call:
            case AddCall():
                prompt = int32_array(call.prompt_token_ids)
                return partial(scheduler.add_request, call.request_id, prompt, **call.options), lambda s: s.name
            case AbortCall():
                return partial(scheduler.abort, call.request_id), bool
            case ForceCall():
                return partial(scheduler.force, call.request_id, int32_array(call.token_ids)), bool
            case SuggestCall():
                return partial(scheduler.suggest, call.request_id, int32_array(call.token_ids)), bool
            case ScheduleCall():
                return partial(scheduler.schedule, call.now), partial(plan_result, fields=self._plan_fields)
            case CommitCall():
                sampled = int32_array(call.sampled_token_ids)
                return partial(scheduler.commit, sampled, call.now), partial(output_result, fields=self._output_fields)
            case ResetCall():
                return scheduler.reset_prefix_cache, int
            case MovesCall():
                return partial(scheduler.complete_moves, call.done, call.failed), lambda _: None
            case DiskCall():
                method = scheduler.note_on_disk if call.is_there else scheduler.forget_on_disk
                return partial(method, key_array(call.keys)), lambda _: None
            case AdviseCall():
                return partial(scheduler.advise, call.session_id, call.event, call.now, **call.options), list
            case RememberCall():
                tokens = int32_array(call.token_ids)
                return partial(scheduler.remember_session, call.session_id, tokens, **call.options), bool
            case PeerCall():
                return partial(
                    _call_about_peer, scheduler, call
                ), lambda slots: None if slots is None else slots.tobytes()
            case PeerSessionCall(session_id, None, options):
                return partial(scheduler.pull_session, session_id, **options), int
            case PeerSessionCall(session_id, ids, options):
                assert ids is not None
                return partial(scheduler.adopt_session, session_id, int32_array(ids), **options), int

    def _what_differs(self, call: Call, result: object) -> str:
        match call:
            case AddCall():
                return f"add_request({call.request_id})"
            case AbortCall():
                return f"abort({call.request_id})"
            case ForceCall():
                return f"force({call.request_id})"
            case SuggestCall():
                return f"suggest({call.request_id})"
            case ScheduleCall():
                return f"the plan of schedule({call.now}){_differing(call.result, result, self._plan_fields)}"
            case CommitCall():
                return f"the output of commit(…, {call.now}){_differing(call.result, result, self._output_fields)}"
            case ResetCall():
                return "reset_prefix_cache()"
            case MovesCall():
                return "complete_moves()"
            case DiskCall():
                return "note_on_disk()" if call.is_there else "forget_on_disk()"
            case AdviseCall():
                return f"advise({call.session_id!r})"
            case RememberCall():
                return f"remember_session({call.session_id!r})"
            case PeerCall(method):
                return f"{method}()"
            case PeerSessionCall(session_id, ids):
                return f"{'pull' if ids is None else 'adopt'}_session({session_id!r})"
            case AdvisorCall():
                return f"what {call.method}() of the advisor says"


def _differing(recorded: object, replayed: object, fields: Sequence[str]) -> str:
    if not isinstance(recorded, PlanResult | OutputResult) or not isinstance(replayed, PlanResult | OutputResult):
        return ""
    old, new = (
        [r.digests[i : i + DIGEST_BYTES] for i in range(0, len(r.digests), DIGEST_BYTES)] for r in (recorded, replayed)
    )
    differing = [name for name, a, b in zip(fields, old, new, strict=False) if a != b]
    return f": {', '.join(differing)}" if differing else ""


def _in_words(result: object, error: str | None) -> str:
    match result:
        case _ if error is not None:
            return f"failed: {error}"
        case PlanResult():
            return (
                f"{result.num_seqs} sequences, {result.num_tokens} tokens, {result.num_samples} to sample, "
                f"{result.num_preempted} preempted"
            )
        case AdviceResult():
            return (
                f"{result.num_granted} requests, {result.num_tokens} tokens, {result.num_admitted} admitted, "
                f"{result.num_preempted} preempted"
            )
        case OutputResult():
            return f"{result.num_sampled} tokens, {result.num_finished} requests finished"
        case _:
            return str(result)
