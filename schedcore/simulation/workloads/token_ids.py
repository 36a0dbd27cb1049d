"""Token ids for workloads that know lengths and shared prefixes but no text.

A token is a function of a stream and of its position in the request (cpp/core/simulation/synthetic_tokens.h). A prompt
is a row of runs, each one a stretch of one stream, so two prompts share a prefix exactly as far as their runs agree.
Streams are 64-bit numbers: two bits of kind, fourteen of the workload's part (see Workload.merged), the rest names the
source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

PART_SHIFT = 48
PART_MASK = 2**14 - 1
KIND_SHIFT = 62


class StreamKind(IntEnum):
    REQUEST = 0  # tokens of one request alone
    SESSION = 1  # of a conversation: prompts and answers in turn
    BLOCK = 2  # of one block of a trace whose blocks have ids


def stream_id(kind: StreamKind, number: int) -> int:
    if not 0 <= number < 2**PART_SHIFT:
        raise ValueError(f"{number} is no number for a stream")
    return kind << KIND_SHIFT | number


@dataclass(frozen=True, slots=True)
class Prompts:
    """Runs of all prompts: those of request r are [offsets[r], offsets[r + 1])."""

    offsets: Int64  # [num_requests + 1]
    streams: UInt64  # [num_runs]
    ends: Int32  # [num_runs], the position after the run; a request's last one is its number of input tokens
    continuations: UInt64  # [num_requests], the stream of the answer

    @classmethod
    def from_runs(cls, runs: Sequence[Sequence[tuple[int, int]]], continuations: Sequence[int]) -> Prompts:
        """runs: per request, (stream, end) in order of position."""
        flat = [run for of_request in runs for run in of_request]
        return cls(
            offsets=np.concatenate([[0], np.cumsum([len(of_request) for of_request in runs], dtype=np.int64)]),
            streams=np.array([stream for stream, _ in flat], np.uint64),
            ends=np.array([end for _, end in flat], np.int32),
            continuations=np.array(continuations, np.uint64),
        )

    @classmethod
    def unrelated(cls, input_tokens: npt.ArrayLike) -> Prompts:
        """No two prompts share anything."""
        ends = np.asarray(input_tokens, np.int32)
        streams = np.arange(ends.size, dtype=np.uint64)  # StreamKind.REQUEST is 0
        return cls(np.arange(ends.size + 1, dtype=np.int64), streams, ends, streams)

    @property
    def input_tokens(self) -> Int32:
        return self.ends[self.offsets[1:] - 1]

    def select(self, requests: Int64) -> Prompts:
        counts = np.diff(self.offsets)[requests]
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        runs = np.arange(offsets[-1]) + np.repeat(self.offsets[requests] - offsets[:-1], counts)
        return Prompts(offsets, self.streams[runs], self.ends[runs], self.continuations[requests])

    @property
    def num_parts(self) -> int:
        parts = (self.streams >> np.uint64(PART_SHIFT)) & np.uint64(PART_MASK)
        return 1 + int(parts.max(initial=0))

    def in_part(self, part: int) -> Prompts:
        """The same prompts with streams that workloads of fewer parts do not have."""
        shift = np.uint64(part << PART_SHIFT)
        return Prompts(self.offsets, self.streams + shift, self.ends, self.continuations + shift)

    def compact(self) -> Prompts:
        """Other streams, the same shared prefixes, fewer runs: what always comes together becomes one run.

        A run is dropped, and the next one covers its positions, if both are in the same prompts and of one length each.
        Streams of answers stay, since what they share is not known here.
        """
        _, stream, count = np.unique(self.streams, return_inverse=True, return_counts=True)
        is_last = np.zeros(stream.size, bool)
        is_last[self.offsets[1:] - 1] = True
        following = np.where(is_last, -1, np.append(stream[1:], -1))
        has_one_end = _of_one_value(stream, self.ends, count.size)[stream]
        is_of_answers = np.isin(self.streams, self.continuations)
        is_plain = has_one_end & ~is_of_answers
        is_dropped = is_plain & np.append(is_plain[1:], False) & ~is_last
        is_dropped &= _of_one_value(stream, following, count.size)[stream] & (count[stream] == count[following])
        kept = np.flatnonzero(~is_dropped)
        return Prompts(np.searchsorted(kept, self.offsets), self.streams[kept], self.ends[kept], self.continuations)

    def joined(self, other: Prompts) -> Prompts:
        return Prompts(
            np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]),
            np.concatenate([self.streams, other.streams]),
            np.concatenate([self.ends, other.ends]),
            np.concatenate([self.continuations, other.continuations]),
        )

    def prompt_token_ids(self, request: int) -> Int32:
        parts, start = [], 0
        for run in range(self.offsets[request], self.offsets[request + 1]):
            parts.append(stream_tokens(int(self.streams[run]), start, int(self.ends[run])))
            start = int(self.ends[run])
        return np.concatenate(parts)


def _of_one_value(group: npt.NDArray[np.intp], values: npt.NDArray[Any], num_groups: int) -> npt.NDArray[np.bool_]:
    """Per group: whether all of its values are equal."""
    first = np.zeros(num_groups, values.dtype)
    first[group] = values  # the last one written, any will do
    differs = np.zeros(num_groups, bool)
    differs[group[values != first[group]]] = True
    return ~differs


def stream_tokens(stream: int, start: int, end: int) -> Int32:
    """The stream's tokens at positions [start, end): SplitMix64, its upper 31 bits."""
    z = np.uint64(stream) + np.arange(start + 1, end + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(33)).astype(np.int32)
