"""Random histories: whatever a client does in whatever order, the core's promises hold after every call."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.hashing_engine import HashingEngine
from schedcore._core import AddStatus
from schedcore.api.types import FinishReason

requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=16),  # two tokens: prompts share prefixes
        "max_tokens": st.integers(1, 16),
        "priority": st.integers(0, 2),
        "request_class": st.integers(0, 2),
        "cache_salt": st.sampled_from(["", "", "other"]),
        "stop_token_ids": st.sampled_from([(), (2,)]),
    }
)


class Histories(RuleBasedStateMachine):
    engine: HashingEngine

    @initialize(
        blocks=st.integers(1, 16),
        num_layers=st.integers(1, 3),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.integers(1, 16),
        max_model_len=st.integers(2, 32),
        policy=st.sampled_from(["fcfs", "priority"]),
        enable_prefix_caching=st.booleans(),
        enable_chunked_prefill=st.booleans(),
    )
    def start(self, blocks: int, num_layers: int, **config: object) -> None:
        num_units = blocks * 2 * num_layers
        self.engine = HashingEngine(
            num_units=num_units, num_layers=num_layers, layers_per_unit=1, vocab_size=3, **config
        )
        self.next_id = 0
        self.num_accepted = 0

    @rule(request=requests)
    def add(self, request: dict[str, object]) -> None:
        status = self.engine.add(self.next_id, arrival_time=self.engine.now, **request)
        assert status in (AddStatus.OK, AddStatus.TOO_LONG)
        self.num_accepted += status is AddStatus.OK
        self.next_id += 1

    @precondition(lambda self: self.next_id > 0)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.integers(0, self.next_id - 1)))

    @rule()
    def step(self) -> None:
        self.engine.step()

    @precondition(lambda self: self.next_id > 0)
    @rule(data=st.data(), request=requests)
    def step_while_the_world_goes_on(self, data: st.DataObject, request: dict[str, object]) -> None:
        def meanwhile() -> None:
            self.engine.abort(data.draw(st.integers(0, self.next_id - 1)))
            self.add(request)
            self.engine.scheduler.check_invariants()

        self.engine.step(meanwhile)

    @rule(num_steps=st.integers(2, 12))
    def several_steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()

    @rule()
    def reset_prefix_cache(self) -> None:
        self.engine.scheduler.reset_prefix_cache()

    @invariant()
    def the_core_agrees_with_itself(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        stats = self.engine.scheduler.stats()
        assert all(asked.reason is not FinishReason.NONE for asked in self.engine.requests.values())
        assert sum(stats["num_finished"]) == self.num_accepted
        assert stats["num_free_units"] + stats["num_cached_units"] == stats["num_units"]
        assert stats["num_running"] == stats["num_waiting"] == [0, 0, 0]


Histories.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
