"""An engine without a model, which executes plans as the worker does and notices every wrong one.

The "vector" of a token is a hash of all it depends on: the salt, every token up to it, and the part (layer group and
vector kind) it belongs to. A step writes these hashes to a fake pool through the block tables and then reads every
position of every sequence back. Whatever the prefix cache, eviction, preemption and row recycling did, each position
must hold what a run without any of them would have written. The next token is a hash of the last position, so that a
request's output is a pure function of its salt and prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from schedcore._core import AddStatus, BatchPlan, Scheduler, SchedulerConfig, StepOutput
from schedcore.api.types import FinishReason


def mix(hashed: int, value: int) -> int:
    return hash((hashed, value)) & 0x7FFF_FFFF_FFFF


def prefix_hashes(salt: str, tokens: list[int]) -> list[int]:
    """One per token: of the salt and of all tokens up to it."""
    return list(accumulate(tokens, mix, initial=sum(salt.encode())))[1:]


@dataclass
class Asked:
    """An accepted request and what came of it."""

    prompt: list[int]
    max_tokens: int
    salt: str = ""
    stop_token_ids: tuple[int, ...] = ()
    output: list[int] = field(default_factory=list)
    reason: FinishReason = FinishReason.NONE
    num_cached_tokens: int | None = None

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output


@dataclass(frozen=True)
class Sequence:
    """One sequence of a plan, decoded."""

    request_id: int
    row: int
    begin: int  # first position computed by the step
    end: int
    token_ids: list[int]


def sequences(plan: BatchPlan) -> Iterator[Sequence]:
    for s in range(plan.num_seqs):
        first, last = int(plan.query_start[s]), int(plan.query_start[s + 1])
        end = int(plan.seq_lens[s])
        assert plan.positions[first:last].tolist() == list(range(end - (last - first), end))
        assert (plan.token_row[first:last] == plan.rows[s]).all()
        row, tokens = int(plan.rows[s]), plan.token_ids[first:last].tolist()
        yield Sequence(int(plan.request_ids[s]), row, end - (last - first), end, tokens)


class HashingEngine:
    def __init__(self, *, vocab_size: int = 5, **config: object) -> None:
        self.config = SchedulerConfig(**config)
        self.max_model_len = int(config.get("max_model_len", 4096))
        self.block_size = int(config.get("block_size", 16))
        self.vocab_size = vocab_size
        self.scheduler = Scheduler(self.config)
        self.requests: dict[int, Asked] = {}
        self.now = 0.0
        rows = int(config.get("max_num_seqs", 256))
        shape = (rows, self.config.units_per_block, self.config.max_blocks_per_seq)
        self.tables = np.full(shape, -1, np.int32)
        self.pool = np.zeros((int(config["num_units"]), self.block_size), np.int64)

    def add(self, request_id: int, prompt: list[int], max_tokens: int, **options: object) -> AddStatus:
        status = self.scheduler.add_request(request_id, prompt, max_tokens=max_tokens, **options)
        if status is AddStatus.OK:
            salt, stops = str(options.get("cache_salt", "")), tuple(options.get("stop_token_ids", ()))
            self.requests[request_id] = Asked(prompt, max_tokens, salt, stops)
        return status

    def abort(self, request_id: int) -> bool:
        was_live = self.scheduler.abort(request_id)
        asked = self.requests.get(request_id)
        assert was_live == (asked is not None and asked.reason is FinishReason.NONE)
        if asked is not None and was_live:
            asked.reason = FinishReason.ABORT
        return was_live

    def step(self, while_open: Callable[[], object] = lambda: None) -> list[Sequence]:
        """One round; `while_open` runs between schedule() and commit(). Returns what the plan computed."""
        has_work = self.scheduler.has_work()
        plan = self.scheduler.schedule(self.now)
        assert bool(plan) == has_work
        self.preempted = plan.preempted_ids.tolist()
        if not plan:
            return []
        computed, sampled = self._execute(plan)
        while_open()
        self._read(self.scheduler.commit(np.array(sampled, np.int32), self.now))
        self.now += 1.0
        return computed

    def run(self) -> None:
        while self.scheduler.has_work():
            self.step()
            self.scheduler.check_invariants()

    def expected_output(self, asked: Asked) -> list[int]:
        """What the request must answer, without any scheduler."""
        output: list[int] = []
        while len(output) < asked.max_tokens and len(asked.prompt) + len(output) < self.max_model_len:
            output.append(prefix_hashes(asked.salt, asked.prompt + output)[-1] % self.vocab_size)
            if output[-1] in asked.stop_token_ids:
                break
        return output

    def _execute(self, plan: BatchPlan) -> tuple[list[Sequence], list[int]]:
        self.tables.reshape(-1)[plan.block_table_index] = plan.block_table_unit
        computed = list(sequences(plan))
        assert len({seq.row for seq in computed}) == len({seq.request_id for seq in computed}) == len(computed)
        hashes = [self._check_tokens(seq) for seq in computed]
        for seq, expected in zip(computed, hashes, strict=True):
            for part, position, value in self._vectors(seq.begin, seq.end, expected):
                self.pool[self._place(seq.row, part, position)] = value
        for seq, expected in zip(computed, hashes, strict=True):
            for part, position, value in self._vectors(0, seq.end, expected):
                assert self.pool[self._place(seq.row, part, position)] == value, (seq, part, position)
        at_end = [s for s, seq in enumerate(computed) if seq.end == len(self.requests[seq.request_id].known)]
        assert plan.sample_seqs.tolist() == at_end
        return computed, [hashes[s][-1] % self.vocab_size for s in at_end]

    def _check_tokens(self, seq: Sequence) -> list[int]:
        asked = self.requests[seq.request_id]
        assert asked.reason is FinishReason.NONE
        assert seq.token_ids == asked.known[seq.begin : seq.end]
        return prefix_hashes(asked.salt, asked.known[: seq.end])

    def _vectors(self, begin: int, end: int, hashes: list[int]) -> Iterator[tuple[int, int, int]]:
        for part in range(self.config.units_per_block):
            for position in range(begin, end):
                yield part, position, mix(hashes[position], part)

    def _place(self, row: int, part: int, position: int) -> tuple[int, int]:
        unit = int(self.tables[row, part, position // self.block_size])
        assert unit >= 0
        return unit, position % self.block_size

    def _read(self, output: StepOutput) -> None:
        columns = (output.request_ids, output.token_ids, output.finish_reasons, output.num_output_tokens)
        for request_id, token, reason, num_output in zip(*(c.tolist() for c in columns), strict=True):
            asked = self.requests[request_id]
            assert asked.reason is FinishReason.NONE
            asked.output.append(token)
            asked.reason = FinishReason(reason)
            assert num_output == len(asked.output)
            if asked.reason is not FinishReason.NONE:
                assert asked.output == self.expected_output(asked)
        for request_id, num_cached in zip(output.request_ids.tolist(), output.num_cached_tokens.tolist(), strict=True):
            asked = self.requests[request_id]
            assert asked.num_cached_tokens in (None, num_cached)
            asked.num_cached_tokens = num_cached
