"""Which prompt tokens are served from the cache: the core against a set of prefixes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.hashing_engine import HashingEngine

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)
salts = st.sampled_from(["", "a", "b"])


class PrefixSet:
    """Every complete block ever computed, by salt and the tokens up to its end. Nothing is evicted."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.prefixes: set[tuple[str, tuple[int, ...]]] = set()

    def num_cached(self, salt: str, tokens: list[int]) -> int:
        """The last token is always computed."""
        end = 0
        while end + self.block_size < len(tokens) and (salt, tuple(tokens[: end + self.block_size])) in self.prefixes:
            end += self.block_size
        return end

    def insert(self, salt: str, tokens: list[int]) -> None:
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            self.prefixes.add((salt, tuple(tokens[:end])))


@given(
    asked=st.lists(st.tuples(prompts, salts, st.integers(1, 6)), min_size=1, max_size=12),
    block_size=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_hits_are_the_longest_known_prefixes(asked: list[tuple[list[int], str, int]], block_size: int) -> None:
    engine = HashingEngine(
        num_units=2000, num_layers=1, block_size=block_size, max_model_len=32, max_num_seqs=4, vocab_size=2
    )
    twin = PrefixSet(block_size)
    for request_id, (prompt, salt, max_tokens) in enumerate(asked):
        expected = twin.num_cached(salt, prompt)
        engine.add(request_id, prompt, max_tokens, cache_salt=salt)
        engine.run()
        answered = engine.requests[request_id]
        assert answered.num_cached_tokens == expected
        twin.insert(salt, answered.known[:-1])  # the last token sampled is never computed
    assert engine.scheduler.stats()["num_cached_units"] == 2 * len(twin.prefixes)


def test_a_tenant_cannot_obtain_another_s_cache() -> None:
    engine = HashingEngine(num_units=64, num_layers=4, block_size=4)
    secret = list(range(17))
    for request_id, salt in enumerate(["tenant a", "tenant b", "tenant a "]):
        engine.add(request_id, secret, 1, cache_salt=salt)
        engine.run()
        assert engine.requests[request_id].num_cached_tokens == 0
    engine.add(9, secret, 1, cache_salt="tenant a")
    engine.run()
    assert engine.requests[9].num_cached_tokens == 16


def test_without_prefix_caching_there_are_no_hits() -> None:
    engine = HashingEngine(num_units=64, num_layers=4, block_size=4, enable_prefix_caching=False)
    for request_id in range(2):
        engine.add(request_id, list(range(17)), 1)
        engine.run()
        assert engine.requests[request_id].num_cached_tokens == 0
    stats = engine.scheduler.stats()
    assert stats["num_cached_units"] == 0
    assert stats["num_free_units"] == 64


def test_a_reset_drops_what_nobody_runs_and_nothing_else() -> None:
    engine = HashingEngine(num_units=64, num_layers=4, block_size=4)
    engine.add(1, list(range(8)), 1)
    engine.run()
    engine.add(2, list(range(100, 108)), 5)
    engine.step()
    assert engine.scheduler.reset_prefix_cache() == 2
    engine.add(3, list(range(9)), 1)
    engine.add(4, list(range(100, 109)), 1)
    engine.run()
    assert engine.requests[3].num_cached_tokens == 0
    assert engine.requests[4].num_cached_tokens == 8
