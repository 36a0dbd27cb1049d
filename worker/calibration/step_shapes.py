"""Which steps a calibration measures: prompts alone, decodes alone, and both together, over the range of the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MIN_CHUNK = 2  # tokens; a sequence with one is a decode (cpp/core/offline/plan_features.h)
MIN_DECODE = 2  # tokens that a decode attends to: a prompt of one, and its own
_CONTEXT_SHARES = (0.0, 0.25, 0.75)  # of the longest context that fits
_MAX_CHUNKS = 4  # prompts in one step
_MAX_HIDDEN = 4096  # hidden-cached tokens in one step: their time is proportional, and long


@dataclass(frozen=True, slots=True)
class Chunk:
    context: int  # tokens before it that have their cache: whole blocks
    tokens: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step: sequences that decode, by the tokens that each attends to, and chunks of prompts."""

    decodes: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()  # of hidden-cached requests: without context
    is_hidden: bool = False  # all that is cached is hidden states

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.tokens for chunk in self.chunks)

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.chunks)

    def num_blocks(self, block_size: int) -> int:
        """That the cache must have: per sequence one more than it fills, which a scheduler keeps free to admit it."""
        lengths = [*self.decodes, *(chunk.context + chunk.tokens for chunk in self.chunks)]
        return sum(length // block_size + 2 for length in lengths)


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    max_num_seqs: int
    max_num_tokens: int  # in one step
    max_model_len: int
    num_blocks: int  # in the cache
    block_size: int

    def allows(self, shape: StepShape) -> bool:
        longest = max([*shape.decodes, *(chunk.context + chunk.tokens for chunk in shape.chunks)])
        return (
            shape.num_seqs <= self.max_num_seqs
            and shape.num_tokens <= self.max_num_tokens
            and longest < self.max_model_len
            and shape.num_blocks(self.block_size) <= self.num_blocks
        )


def step_shapes(limits: ShapeLimits, seed: int = 0, num_mixed: int = 48) -> list[StepShape]:
    """Prompts alone and decodes alone on a grid, then num_mixed random ones of both, all distinct.

    Sizes are spread evenly on a logarithmic scale, as their effect on the time is relative. Raises ValueError if the
    limits leave fewer than 20: too little to fit.
    """
    rng = np.random.default_rng(seed)
    shapes = [*_prefill_shapes(limits, rng), *_decode_shapes(limits, rng)]
    shapes += [_mixed_shape(limits, rng) for _ in range(num_mixed)]
    allowed = [shape for shape in dict.fromkeys(shapes) if limits.allows(shape)]
    if len(allowed) < 20:
        raise ValueError(f"the engine's limits allow only {len(allowed)} different steps: too few for a calibration")
    return allowed


def hidden_shapes(limits: ShapeLimits, seed: int = 1, num_mixed: int = 12) -> list[StepShape]:
    """Decodes of hidden-cached requests alone, and beside a prompt. Every one has its like among step_shapes()."""
    rng = np.random.default_rng(seed)
    shapes = _decode_shapes(limits, rng)
    shapes += [_mixed_shape(limits, rng) for _ in range(num_mixed)]
    hidden = [StepShape(shape.decodes, tuple(Chunk(0, c.tokens) for c in shape.chunks), True) for shape in shapes]
    return [shape for shape in dict.fromkeys(hidden) if limits.allows(shape) and sum(shape.decodes) <= _MAX_HIDDEN]


def _prefill_shapes(limits: ShapeLimits, rng: np.random.Generator) -> list[StepShape]:
    single = [
        StepShape(
            chunks=(Chunk(_whole_blocks(share * (limits.max_model_len - tokens - 1), limits.block_size), tokens),)
        )
        for tokens in _powers(MIN_CHUNK, _longest_chunk(limits))
        for share in _CONTEXT_SHARES
    ]
    numbers = rng.integers(2, _MAX_CHUNKS + 1, len(single) // 3)
    return single + [StepShape(chunks=_chunks(limits, rng, int(num))) for num in numbers]


def _decode_shapes(limits: ShapeLimits, rng: np.random.Generator) -> list[StepShape]:
    """Contexts in a step differ by up to a factor of three, so that their sum and their largest tell apart."""
    shapes = []
    for num in _powers(1, _most_decodes(limits)):
        longest = _longest_decode(limits, num)
        means = (32, *(longest * share for share in (0.1, 0.4, 0.8)))
        shapes += [StepShape(decodes=_decodes(mean, num, longest, rng)) for mean in means]
    return shapes


def _mixed_shape(limits: ShapeLimits, rng: np.random.Generator) -> StepShape:
    num = _log_uniform(rng, 1, _most_decodes(limits))
    longest = _longest_decode(limits, num)
    decodes = _decodes(_log_uniform(rng, 8, longest), num, longest, rng)
    return StepShape(decodes, _chunks(limits, rng, int(rng.integers(1, 3))))


def _chunks(limits: ShapeLimits, rng: np.random.Generator, num: int) -> tuple[Chunk, ...]:
    chunks = []
    for _ in range(num):
        tokens = _log_uniform(rng, 8, _longest_chunk(limits) // num)
        room = limits.max_model_len - tokens - 1
        context = 0 if rng.random() < 0.5 else _log_uniform(rng, limits.block_size, room)
        chunks.append(Chunk(_whole_blocks(context, limits.block_size), tokens))
    return tuple(chunks)


def _decodes(mean: float, num: int, longest: int, rng: np.random.Generator) -> tuple[int, ...]:
    contexts = mean * (rng.uniform(0.5, 1.5, num) if num > 1 else np.ones(1))
    return tuple(np.clip(contexts, MIN_DECODE, longest).astype(int).tolist())


def _most_decodes(limits: ShapeLimits) -> int:
    return max(1, min(limits.max_num_seqs, limits.max_num_tokens, limits.num_blocks // 4))


def _longest_chunk(limits: ShapeLimits) -> int:
    cache = (limits.num_blocks - 2) * limits.block_size
    return max(MIN_CHUNK, min(limits.max_num_tokens, limits.max_model_len - 1, cache))


def _longest_decode(limits: ShapeLimits, num: int) -> int:
    """So that `num` of them fit the cache."""
    return max(MIN_DECODE, min(limits.max_model_len - 1, (limits.num_blocks // num - 2) * limits.block_size))


def _powers(first: int, last: int) -> list[int]:
    """first, twice as much, ... and last, each once."""
    powers = []
    while first < last:
        powers.append(first)
        first *= 2
    return [*powers, last]


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(max(low, high)))))


def _whole_blocks(tokens: float, block_size: int) -> int:
    return int(tokens) // block_size * block_size
