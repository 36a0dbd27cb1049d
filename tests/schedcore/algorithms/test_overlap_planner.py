"""Overlap against exhaustive search; the pipeline against an event simulation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from schedcore._core import algorithms

NOTHING, KV, HIDDEN = 0, 1, 2


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer; load_hidden None: the host has no X."""

    compute: float
    recompute: float
    load_kv: float
    load_hidden: float | None = None
    project: float = 0.0

    def plan(self, num_layers: int) -> algorithms.OverlapPlan:
        return algorithms.plan_overlap(
            num_layers,
            compute_seconds=self.compute,
            recompute_seconds=self.recompute,
            load_kv_seconds=self.load_kv,
            load_hidden_seconds=self.load_hidden,
            project_seconds=self.project,
        )


def simulate(layer: Layer, num_layers: int, recomputed: int, window: int, kind: int) -> float:
    """Two engines that each start their next job as soon as its inputs are there."""
    load = (layer.load_hidden or 0.0) if kind == HIDDEN else layer.load_kv
    work = layer.compute + (layer.project if kind == HIDDEN else 0.0)
    load_end: dict[int, float] = {}
    compute_end = {-1: 0.0}
    for i in range(num_layers):
        if i < recomputed:
            compute_end[i] = compute_end[i - 1] + layer.recompute + layer.compute
            continue
        is_first = i == recomputed
        place_free = compute_end[i - window] if i - window >= recomputed else 0.0
        load_end[i] = max(0.0 if is_first else load_end[i - 1], place_free) + load
        compute_end[i] = max(compute_end[i - 1], load_end[i]) + work
    return compute_end[num_layers - 1]


def all_configurations(layer: Layer, num_layers: int) -> dict[tuple[int, int, int], float]:
    found = {(num_layers, 0, NOTHING): num_layers * (layer.compute + layer.recompute)}
    kinds = (KV,) if layer.load_hidden is None else (KV, HIDDEN)
    for recomputed, window, kind in itertools.product((0, 1, 2), (1, 2, 3), kinds):
        if recomputed < num_layers:
            found[recomputed, window, kind] = simulate(layer, num_layers, recomputed, window, kind)
    return found


def test_no_configuration_is_faster_and_none_as_fast_needs_less_workspace() -> None:
    rng = np.random.default_rng(1)
    for _ in range(1000):
        times = [float(t) for t in rng.integers(1, 12, 5)]
        layer = Layer(*times[:3], times[3] if rng.random() < 0.6 else None, times[4] / 4)
        num_layers = int(rng.integers(1, 41))
        plan, found = layer.plan(num_layers), all_configurations(layer, num_layers)
        chosen = plan.recomputed_layers, plan.window, plan.loaded_kind
        assert plan.seconds == pytest.approx(found[chosen])
        assert plan.seconds == pytest.approx(min(found.values()))

        def workspace(configuration: tuple[int, int, int]) -> int:
            recomputed, window, _ = configuration
            return window + (recomputed > 0)

        as_fast = [c for c, seconds in found.items() if seconds == pytest.approx(plan.seconds)]
        assert plan.workspace_layers == workspace(chosen) == min(map(workspace, as_fast))


def test_a_slow_host_means_recomputing_everything() -> None:
    plan = Layer(compute=1, recompute=1, load_kv=100).plan(40)
    assert (plan.recomputed_layers, plan.loaded_kind, plan.workspace_layers) == (40, NOTHING, 1)


def test_a_fast_host_means_loading_with_a_window_of_two() -> None:
    plan = Layer(compute=4, recompute=50, load_kv=1).plan(40)
    assert (plan.recomputed_layers, plan.window, plan.loaded_kind) == (0, 2, KV)
    assert plan.seconds == 1 + 40 * 4


def test_a_leading_recomputed_layer_hides_the_first_load() -> None:
    plan = Layer(compute=4, recompute=1, load_kv=5).plan(2)
    assert (plan.recomputed_layers, plan.seconds) == (1, 9)
    plan = Layer(compute=4, recompute=3, load_kv=4).plan(40)
    assert plan.recomputed_layers == 1
    assert plan.seconds == 3 + 40 * 4


def test_hidden_is_loaded_where_its_bytes_save_more_than_its_projection_costs() -> None:
    assert Layer(compute=1, recompute=50, load_kv=10, load_hidden=5, project=1).plan(40).loaded_kind == HIDDEN
    assert Layer(compute=1, recompute=50, load_kv=10, load_hidden=5, project=20).plan(40).loaded_kind == KV


def test_papers_choice_has_the_smallest_bubble_of_its_six() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        base, recompute, swap = rng.uniform(0, 5), rng.uniform(0.1, 10), rng.uniform(0.1, 10)
        l2, l1, bubble = algorithms.paper_overlap(base, recompute, swap)
        six = {(l2, l1): abs(base + l2 * recompute - l1 * swap) for l2 in (1, 2) for l1 in (1, 2, 3)}
        assert bubble == pytest.approx(six[l2, l1])
        assert bubble == pytest.approx(min(six.values()))


def test_papers_choice_takes_more_layers_when_bubbles_are_equal() -> None:
    assert algorithms.paper_overlap(0.0, 1.0, 1.0) == (2, 2, 0.0)
