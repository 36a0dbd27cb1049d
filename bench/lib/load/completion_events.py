"""What a streamed completion said, read when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from bench.lib.load.http_stream import HttpResponse
from bench.lib.load.request_trace import RequestTrace

_READ_FIRST, _READ_LAST = 2, 4  # events that may be no tokens: a chat's role, the finish reason, usage, an error
_DONE = b"data: [DONE]"

TimedEvent = tuple[float, bytes]


def read_completion(trace: RequestTrace, response: HttpResponse, num_expected: int | None) -> None:
    """Fills in the trace, and judges: too few tokens are an error, since they would flatter the server.

    num_expected: output tokens that were asked for; None where the model may stop by itself.
    """
    if response.status != 200:
        trace.error = f"HTTP {response.status}: {response.body()[:200].decode(errors='replace')}"
        return
    events = [(time, event) for time, event in response.events() if event.startswith(b"data:")]
    is_done = bool(events) and events[-1][1] == _DONE
    read_events(trace, events[:-1] if is_done else events)
    if trace.error:
        return
    if not is_done:
        trace.error = "stream ended without [DONE]"
    elif num_expected is not None and trace.num_output_tokens != num_expected:
        trace.error = f"{trace.num_output_tokens} output tokens instead of {num_expected}"
    elif not trace.chunk_times:
        trace.error = "no chunk carried a token"


def read_events(trace: RequestTrace, events: Sequence[TimedEvent]) -> None:
    """JSON is parsed where an event may be something else than a token; the many in between are.

    Where no chunk carries a token, because all tokens are silent ones, the last chunk with a choice stands for them.
    """
    middle = range(_READ_FIRST, max(_READ_FIRST, len(events) - _READ_LAST))
    end: float | None = None
    for i, (time, event) in enumerate(events):
        choices = () if i in middle else _read_chunk(trace, orjson.loads(event[5:]))
        if i in middle or any(map(_may_carry_token, choices)):
            trace.chunk_times.append(time)
        elif choices:
            end = time
    if end is not None and not trace.chunk_times:
        trace.chunk_times.append(end)
    del trace.chunk_times[trace.num_output_tokens :]


def _read_chunk(trace: RequestTrace, chunk: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Takes usage and error; the chunk's choices."""
    if "error" in chunk:
        trace.error = f"error event: {chunk['error']}"
    if usage := chunk.get("usage"):
        trace.num_prompt_tokens = usage["prompt_tokens"]
        trace.num_output_tokens = usage["completion_tokens"]
    return chunk.get("choices") or ()


def _may_carry_token(choice: dict[str, Any]) -> bool:
    """A token may be no text yet, half a character; but a chat's role alone and a finish reason alone are none."""
    delta = choice.get("delta")
    text = choice.get("text") if delta is None else delta.get("content") or delta.get("reasoning_content")
    is_role_or_end = choice.get("finish_reason") is not None or (delta is not None and "role" in delta)
    return bool(text) or not is_role_or_end
