"""Workloads from CSV files, plain or gzipped.

Columns: input_tokens and output_tokens; arrival_s (seconds), session_id, turn and prefix_hashes may be empty or absent;
others are ignored. Rows of a session stand in order of their turns. prefix_hashes are ids, separated by spaces, of the
prompt's leading blocks: equal ids at equal positions are equal prefixes. Their block size is inferred unless given.

Prompts without prefix_hashes share nothing but the history of their session: a turn's prompt then begins with all
prompts and answers before it, as far as it is long enough to.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import PART_SHIFT, Prompts, StreamKind, stream_id
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload, make_workload

Float64 = npt.NDArray[np.float64]
Run = tuple[int, int]

MAX_TOKENS = 2**30  # of a request's prompt or answer
HASH_BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)


class TraceError(ValueError):
    """The file is no trace, or lacks what is asked of it."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's rows."""

    name: str
    arrival_s: Float64  # NaN where unknown
    sessions: list[str]  # empty where unknown
    input_tokens: list[int]
    output_tokens: list[int]
    prefix_hashes: list[list[int]]  # empty where unknown

    def __len__(self) -> int:
        return len(self.sessions)

    @property
    def has_arrivals(self) -> bool:
        return not bool(np.isnan(self.arrival_s).any())

    @property
    def session_numbers(self) -> npt.NDArray[np.int64]:
        """Equal for rows of one session; a row without a session is one of its own."""
        numbers: dict[str, int] = {}
        rows = enumerate(self.sessions)
        return np.array([numbers.setdefault(session, row) if session else row for row, session in rows], np.int64)

    def workload(self, *, jitter_s: float = 0.0, seed: int = 0, hash_block_size: int | None = None) -> Workload:
        """Every row at its recorded time, plus up to `jitter_s`, uniformly: for times that were recorded in quanta.

        Raises TraceError if times are missing.
        """
        if not self.has_arrivals:
            raise TraceError(f"{self.name} has no arrival times; say how its requests arrive")
        arrivals = self.arrival_s + np.random.default_rng(seed).uniform(0.0, 1.0, len(self)) * jitter_s
        return self._workload(arrivals, np.full(len(self), NO_REQUEST), hash_block_size)

    def paced_workload(
        self,
        process: ArrivalProcess,
        *,
        think_s: float = 0.0,
        num_requests: int | None = None,
        seed: int = 0,
        hash_block_size: int | None = None,
    ) -> Workload:
        """Rows in file order with arrivals of their own.

        A session arrives as a whole: its first turn by `process`, each later one after the answer to the one before and
        a pause, exponentially distributed with mean `think_s`. With `num_requests`, only so many rows from the start.
        """
        rows = self.head(num_requests) if num_requests is not None else self
        follows = rows._previous_turns()
        is_first = follows == NO_REQUEST
        arrivals = np.random.default_rng([seed, 1]).exponential(1.0, len(rows)) * think_s
        arrivals[is_first] = process.times(int(is_first.sum()), seed)
        return rows._workload(arrivals, follows, hash_block_size)

    def batch_workload(self, hash_block_size: int | None = None) -> Workload:
        """Every row from the start, whatever its session and recorded time: a bulk job."""
        return self._workload(np.zeros(len(self)), np.full(len(self), NO_REQUEST), hash_block_size)

    def sampled_workload(self, process: ArrivalProcess, num_requests: int, seed: int = 0) -> Workload:
        """Independent requests with the lengths of rows drawn at random, with replacement, that share no prefix."""
        rows = np.random.default_rng([seed, 2]).integers(0, len(self), num_requests)
        prompts = Prompts.unrelated(np.array(self.input_tokens, np.int32)[rows])
        outputs = np.array(self.output_tokens, np.int32)[rows]
        return make_workload(process.times(num_requests, seed), prompts, outputs, source=f"lengths of {self.name}")

    def head(self, num_rows: int) -> Trace:
        n = num_rows
        lengths = self.input_tokens[:n], self.output_tokens[:n]
        return Trace(self.name, self.arrival_s[:n], self.sessions[:n], *lengths, self.prefix_hashes[:n])

    def fitting(self, max_model_len: int) -> Trace:
        """Rows whose prompt and answer fit the context, as far as each session goes until the first that does not."""
        keep, closed = [], set()
        for row, (session, size) in enumerate(zip(self.sessions, self._total_tokens(), strict=True)):
            if session and (session in closed or size > max_model_len):
                closed.add(session)
            elif size <= max_model_len:
                keep.append(row)
        return Trace(
            self.name,
            self.arrival_s[keep],
            [self.sessions[row] for row in keep],
            [self.input_tokens[row] for row in keep],
            [self.output_tokens[row] for row in keep],
            [self.prefix_hashes[row] for row in keep],
        )

    def _total_tokens(self) -> list[int]:
        return [i + o for i, o in zip(self.input_tokens, self.output_tokens, strict=True)]

    def _previous_turns(self) -> npt.NDArray[np.int32]:
        follows = np.full(len(self), NO_REQUEST, np.int32)
        last_turn: dict[str, int] = {}
        for row, session in enumerate(self.sessions):
            if session:
                follows[row] = last_turn.get(session, NO_REQUEST)
                last_turn[session] = row
        return follows

    def _workload(self, arrival_s: Float64, follows: npt.ArrayLike, hash_block_size: int | None) -> Workload:
        runs, continuations = self._runs(hash_block_size)
        prompts = Prompts.from_runs(runs, continuations)
        return make_workload(arrival_s, prompts, self.output_tokens, follows=follows, source=self.name)

    def _runs(self, hash_block_size: int | None) -> tuple[list[list[Run]], list[int]]:
        if any(self.prefix_hashes):
            size = hash_block_size or self._infer_hash_block_size()
            runs = [self._block_runs(row, size) for row in range(len(self))]
            return runs, [stream_id(StreamKind.REQUEST, row) for row in range(len(self))]
        streams = list(self._session_streams())
        return [[(stream, end)] for stream, end in zip(streams, self.input_tokens, strict=True)], streams

    def _block_runs(self, row: int, block_size: int) -> list[Run]:
        length = self.input_tokens[row]
        runs: list[Run] = []
        for block, block_hash in enumerate(self.prefix_hashes[row]):
            runs.append((stream_id(StreamKind.BLOCK, block_hash), min((block + 1) * block_size, length)))
        if not runs or runs[-1][1] < length:
            runs.append((stream_id(StreamKind.REQUEST, row), length))
        return runs

    def _infer_hash_block_size(self) -> int:
        """The size by which every row has as many ids as full blocks, or as blocks when the last may be partial."""
        pairs = [(len(hashes), n) for hashes, n in zip(self.prefix_hashes, self.input_tokens, strict=True) if hashes]
        fitting = [
            size
            for size in HASH_BLOCK_SIZES
            if all(count == n // size for count, n in pairs) or all(count == -(-n // size) for count, n in pairs)
        ]
        if len(fitting) != 1:
            raise TraceError(f"{self.name}: the block size of prefix_hashes is not clear; say what it is")
        return fitting[0]

    def _session_streams(self) -> Iterator[int]:
        """One per row. A prompt too short to hold its session's history starts a stream of its own."""
        history: dict[str, tuple[int, int]] = {}  # session -> its stream, tokens so far
        for row, session in enumerate(self.sessions):
            stream, known = history.get(session, (stream_id(StreamKind.SESSION, row), 0))
            if not session:
                stream = stream_id(StreamKind.REQUEST, row)
            elif self.input_tokens[row] < known:
                stream = stream_id(StreamKind.SESSION, row)
            history[session] = stream, self.input_tokens[row] + self.output_tokens[row]
            yield stream


def read_trace(path: Path) -> Trace:
    """Raises TraceError, OSError."""
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        if not rows:
            raise ValueError("it has no rows")
        return _parse(path.name.removesuffix(".gz").removesuffix(".csv"), rows)
    except (ValueError, KeyError, EOFError, csv.Error, gzip.BadGzipFile, zlib.error) as error:
        reason = f"there is no column {error}" if isinstance(error, KeyError) else error
        raise TraceError(f"{path} is no trace: {reason}") from None


def _parse(name: str, rows: Sequence[dict[str, str]]) -> Trace:
    trace = Trace(
        name=name,
        arrival_s=np.array([float(row.get("arrival_s") or "nan") for row in rows]),
        sessions=[row.get("session_id") or "" for row in rows],
        input_tokens=[_count(row["input_tokens"]) for row in rows],
        output_tokens=[_count(row["output_tokens"]) for row in rows],
        prefix_hashes=[[_block(block) for block in (row.get("prefix_hashes") or "").split()] for row in rows],
    )
    if np.isinf(trace.arrival_s).any():
        raise ValueError("a request never arrives")
    return trace


def _block(text: str) -> int:
    block = int(text)
    if not 0 <= block < 2**PART_SHIFT:
        raise ValueError(f"an id of a block is not from 0 to {2**PART_SHIFT - 1}")
    return block


def _count(text: str | None) -> int:
    """Of a request's tokens; None: its row is too short."""
    if text is None:
        raise ValueError("a row has too few columns")
    count = int(text)
    if count < 1:
        raise ValueError("a request has no tokens")
    if count > MAX_TOKENS:
        raise ValueError(f"a request has more than {MAX_TOKENS} tokens")
    return count
