"""eLLM's question by itself: how many requests to decode, and which share of their tokens not to cache.

Every answer is the core's exact solver's (cpp/core/solvers/partial_cache_solver.h), with the paper's count of FLOPs
and with the roofline, beside its answer where recomputing saves no memory: the best that can be done with r = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.studies.document import Cell, Column, Table
from schedcore._core import algorithms
from schedcore.simulation.model_shape import ModelShape

FLOPS_PER_SECOND = 187e12  # 60 % of an A100's 312 TFLOP/s
BYTES_PER_SECOND = 1.73e12  # 85 % of an 80 GB card's 2.04 TB/s


@dataclass(frozen=True, slots=True)
class Case:
    num_requests: int
    num_tokens: int  # of each
    memory_share: float  # of what all of them need with r = 0

    def lengths(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.full(self.num_requests, self.num_tokens, np.int32)


SHARES = (0.99, 0.9, 0.5)
CASES = tuple(Case(n, s, m) for n, s in ((4, 100), (16, 100), (64, 100), (4, 2000), (64, 1000)) for m in SHARES)


def step_costs(shape: ModelShape, form: str, *, can_save: bool = True) -> algorithms.StepCosts:
    """can_save=False: a recomputed token takes as much workspace as its K and V, so that r = 0 is best."""
    kv_bytes, width = shape.kv_bytes_per_token, shape.num_kv_heads * shape.head_dim
    return algorithms.StepCosts(
        form,
        flops_per_token=2.0 * shape.num_layers * shape.layer_weights,
        flops_per_pair=4.0 * shape.attention_width,
        flops_per_logit=2.0 * shape.hidden_size * shape.vocab_size,
        flops_per_second=FLOPS_PER_SECOND,
        weight_bytes=float(shape.num_layers * shape.layer_weights * shape.bytes_per_value),
        head_bytes=float(shape.hidden_size * shape.vocab_size * shape.bytes_per_value),
        kv_bytes_per_token=float(kv_bytes),
        workspace_bytes_per_token=float(min(40 * width, kv_bytes)) if can_save else float(kv_bytes),
        bytes_per_second=BYTES_PER_SECOND,
    )


def free_tokens(shape: ModelShape) -> float:
    """Tokens whose matrix work a decode step hides behind reading the weights."""
    weights = shape.num_layers * shape.layer_weights
    return weights * shape.bytes_per_value / BYTES_PER_SECOND * FLOPS_PER_SECOND / (2.0 * weights)


def answer(shape: ModelShape, form: str, case: Case) -> list[Cell]:
    """b and r, the step's milliseconds, and tokens per second over those of the best r = 0."""
    memory = case.memory_share * case.num_requests * case.num_tokens * shape.kv_bytes_per_token
    b, r, seconds = algorithms.solve_partial_cache(step_costs(shape, form), case.lengths(), memory, 1e9)
    costs = step_costs(shape, form, can_save=False)
    plain_b, _, plain_seconds = algorithms.solve_partial_cache(costs, case.lengths(), memory, 1e9)
    gain = (b / seconds) / (plain_b / plain_seconds) if plain_b else None
    return [f"{b} / {r:.3f}", 1000 * seconds, gain]


def solver_table(shape: ModelShape, cases: Sequence[Case] = CASES) -> Table:
    columns = [
        Column("requests", "0"), Column("tokens each", "0"), Column("memory for", "percent"),
        Column("roofline: b / r"), Column("step (ms)", "1"), Column("over r = 0", "times"),
        Column("FLOPs only: b / r"), Column("step (ms)", "1", is_aside=True), Column("over r = 0", "times"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for case in cases:
        head: list[Cell] = [case.num_requests, case.num_tokens, case.memory_share]
        rows.append([*head, *answer(shape, "roofline", case), *answer(shape, "flops", case)])
    note = (
        f"{FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s and {BYTES_PER_SECOND / 1e12:.2f} TB/s reached. A decode step of "
        f"{shape.name} hides the matrix work of {free_tokens(shape):.0f} tokens behind reading its weights: that many "
        "may be recomputed for nothing, fewer than one request has. Beyond them every recomputed token lengthens the "
        "step for everybody. `–`: not even one request fits with r = 0."
    )
    return Table(f"The solver's answers for {shape.name}: where leaving tokens uncached pays", columns, rows, note)
