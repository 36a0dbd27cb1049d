"""Policy fcfs, step for step, against a model in plain Python (no prefix cache: then memory is arithmetic)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.hashing_engine import HashingEngine


@dataclass
class Modelled:
    request_id: int
    num_prompt: int
    max_tokens: int
    num_output: int = 0
    num_computed: int = 0
    num_blocks: int = 0
    promised: int = 0
    scheduled: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output


class FcfsModel:
    """Requests arrive in order of their ids, all at time 0."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.num_free = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Modelled] = []
        self.running: list[Modelled] = []
        self.preempted: list[int] = []

    def step(self) -> list[tuple[int, int, int]]:
        """(request, first token, end) of each sequence; the set of tokens is what counts, not their order."""
        self.preempted = []
        self.budget = self.max_num_batched_tokens
        decodes = [r for r in self.running if r.num_tokens - r.num_computed == 1]
        for request in decodes + [r for r in self.running if r not in decodes]:
            if self.budget > 0 and request in self.running:
                self.compute(request)
        while self.budget > 0 and self.waiting and self.fits(self.waiting[0]):
            request = self.waiting.pop(0)
            request.promised = self.blocks_for(request.num_tokens + 1)
            self.running.append(request)
            self.compute(request)
        plan = [(r.request_id, r.num_computed, r.num_computed + r.scheduled) for r in self.running if r.scheduled]
        self.commit()
        return plan

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, request: Modelled) -> bool:
        num_others = len(self.running)
        headroom = num_others + 1 if num_others else 0
        needed = self.blocks_for(request.num_tokens + 1) + sum(r.promised for r in self.running) + headroom
        return num_others < self.max_num_seqs and needed <= self.num_free

    def compute(self, request: Modelled) -> None:
        num_tokens = min(request.num_tokens - request.num_computed, self.budget)
        num_new = max(0, self.blocks_for(request.num_computed + num_tokens) - request.num_blocks)
        while num_new > self.num_free:
            last = max(self.running, key=lambda r: r.request_id)
            self.preempt(last)
            if last is request:
                return
        self.num_free -= num_new
        request.num_blocks += num_new
        request.promised = max(0, request.promised - num_new)
        request.scheduled = num_tokens
        self.budget -= num_tokens

    def preempt(self, request: Modelled) -> None:
        self.running.remove(request)
        self.num_free += request.num_blocks
        self.budget += request.scheduled
        request.num_blocks = request.num_computed = request.promised = request.scheduled = 0
        self.waiting = sorted([*self.waiting, request], key=lambda r: r.request_id)
        self.preempted.append(request.request_id)

    def commit(self) -> None:
        for request in list(self.running):
            request.num_computed += request.scheduled
            if request.scheduled and request.num_computed == request.num_tokens:
                request.num_output += 1
            request.scheduled = 0
            if request.num_output == request.max_tokens:
                self.running.remove(request)
                self.num_free += request.num_blocks


shapes = st.tuples(st.integers(1, 20), st.integers(1, 12))  # prompt, max_tokens


@given(
    arrivals=st.lists(st.lists(shapes, max_size=3), min_size=1, max_size=12),
    num_blocks=st.integers(8, 24),
    block_size=st.integers(1, 4),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 32),
)
@settings(max_examples=150, deadline=None)
def test_every_step_is_the_model_s(
    arrivals: list[list[tuple[int, int]]],
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> None:
    engine = HashingEngine(
        num_units=2 * num_blocks,
        num_layers=1,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=min(32, num_blocks * block_size),
        enable_prefix_caching=False,
    )
    model = FcfsModel(num_blocks, block_size, max_num_seqs, max_num_batched_tokens)
    next_id = 0
    while arrivals or engine.scheduler.has_work():
        for num_prompt, max_tokens in arrivals.pop(0) if arrivals else []:
            if num_prompt + max_tokens <= min(32, num_blocks * block_size):
                engine.add(next_id, [next_id] * num_prompt, max_tokens)
                model.waiting.append(Modelled(next_id, num_prompt, max_tokens))
                next_id += 1
        computed = engine.step()
        expected = model.step()
        assert sorted((seq.request_id, seq.begin, seq.end) for seq in computed) == sorted(expected)
        if computed:
            assert engine.preempted == model.preempted
    assert not model.running
    assert not model.waiting
