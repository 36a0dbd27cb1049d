"""What the core decides in 1,134 random histories, as digests: a redesign that changes no decision changes no digest.

    python -m bench.proofs.decision_digests before.json          # in the tree before, its core built
    python -m bench.proofs.decision_digests after.json           # in the tree after
    python -m bench.proofs.decision_digests --compare before.json after.json

A history is one scheduler and 150 turns of requests, aborts, advisories, steps and moves between tiers, drawn from its
seed. Every plan, every output and some counters go into its digest. Nine policies meet 21 configurations with six seeds
each; small memories make nearly every path run. The order of the draws is part of what is compared: change nothing in
it. A field of the core that gets another name keeps its place in PLAN_FIELDS under the new one, and its old digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from schedcore._core import POLICIES, Estimates, MoveKind, Scheduler, SchedulerConfig, algorithms

NUM_SEEDS, NUM_TURNS = 6, 150
FEW_TOKENS = 3  # so many that prompts share prefixes
PLAN_FIELDS = (
    "step_id", "num_tokens", "num_seqs", "token_ids", "positions", "token_row", "request_ids", "rows", "query_start",
    "seq_lens", "sample_seqs", "block_table_index", "block_table_unit", "preempted_ids", "cache_kinds",
    "uncached_tokens", "hidden_tokens", "missing_tokens", "uncached_token_ids", "recomputed_layers", "copy_slots",
    "projections", "projected_units", "roundings", "rounded_units", "transfers", "move_ids", "move_kinds", "move_slots",
    "move_units", "move_keys",
)  # fmt: skip
OUTPUT_FIELDS = ("request_ids", "token_ids", "finish_reasons", "num_output_tokens", "num_cached_tokens")
COUNTERS = {
    "num_running", "num_waiting", "num_units", "num_free_units", "num_cached_units", "num_steps", "num_prompt_tokens",
    "num_output_tokens", "num_cached_prompt_tokens", "num_preemptions", "num_evicted_blocks", "num_preempted",
    "num_finished",
}  # fmt: skip
_PARTIAL = {"enable_prefix_caching": False, "enable_partial_caching": True}
_HIDDEN = {"enable_prefix_caching": False, "hidden_units_per_group": 1}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nocache": {"enable_prefix_caching": False},
    "whole": {"enable_chunked_prefill": False},
    "host": {"num_host_blocks": 24},
    "disk": {"num_host_blocks": 12, "enable_disk": True, "cache_fingerprint": "x"},
    "always": {"num_host_blocks": 24, "restore": "always"},
    "noover": {"num_host_blocks": 24, "overlap_restores": False},
    "hidden": _HIDDEN,
    "partial": _PARTIAL,
    "copies": {**_PARTIAL, "num_host_blocks": 20, "num_copy_blocks": 12},
    "both": {**_HIDDEN, **_PARTIAL},
    "swap": {"enable_prefix_caching": False, "num_host_units": 60, "preemption": "swap"},
    "refine": {"refine_latency": True},
    "allhidden": {**_HIDDEN, "cache_kind": "hidden"},
    "int8": {"int8_units_per_group": 1},
    "int8host": {"int8_units_per_group": 1, "num_host_blocks": 24},
    "allint8": {"int8_units_per_group": 1, "cache_kind": "int8"},
    "nomix": {"enable_mixed_steps": False, "enable_chunked_prefill": False},
    "nores": {"enable_residents": False},
    "nodead": {"enable_deadlines": False},
    "nosearch": {"enable_plan_search": False},
    "notask": {"enable_task_aware_eviction": False},
    "noreserve": {"enable_reserve": False},
    "starve": {"max_wait_ms": 300, "max_offline_wait_ms": 900, "past_target_decay": 0.1},
}


def estimates() -> Estimates:
    coefficients = algorithms.LatencyCoefficients(
        step_base=0.008, prefill_token=1e-3 / 7, decode_seq=1e-3 / 3, overlap=0.1
    )
    costs = algorithms.StepCosts(
        form="roofline",
        flops_per_token=1e9,
        flops_per_pair=1e5,
        flops_per_second=1e14,
        bytes_per_second=1e12,
        kv_bytes_per_token=1e4,
        weight_bytes=1e9,
    )
    return Estimates(
        latency=algorithms.LatencyModel("corrected", coefficients),
        costs=costs,
        host_bytes_per_second=1e9,
        unit_bytes=1e4,
        disk_bytes_per_second=1e8,
    )


class History:
    """One scheduler, told at random; `digest` is of all that it decided."""

    def __init__(self, policy: str, configuration: dict[str, Any], seed: int) -> None:
        """Raises ValueError where the core refuses the configuration."""
        self._random = random.Random(seed)
        choice = self._random.choice
        settings = {
            "num_units": choice([24, 40, 64]), "num_layers": 2, "layers_per_unit": 2, "block_size": 2,
            "max_model_len": 32, "max_num_seqs": choice([2, 4, 8]), "max_num_batched_tokens": choice([8, 12, 32]),
            "max_num_waiting": 12, "policy": policy,
        }  # fmt: skip
        self._scheduler = Scheduler(SchedulerConfig(**{**settings, **configuration}), estimates())
        self._hash = hashlib.sha256()
        self._now = self._random.random()
        self._next_id = 1
        self._moves: list[tuple[int, int]] = []  # under way: id and kind

    def digest(self) -> str:
        for _ in range(NUM_TURNS):
            self._turn()
            self._scheduler.check_invariants()
        stats = self._scheduler.stats()
        self._put(sorted((name, repr(value)) for name, value in stats.items() if name in COUNTERS))
        return self._hash.hexdigest()

    def _put(self, *what: object) -> None:
        self._hash.update(repr(what).encode())

    def _put_fields(self, of: object, names: tuple[str, ...]) -> None:
        for name in names:
            self._put(name, np.array(getattr(of, name)).tolist())

    def _turn(self) -> None:
        self._outside()
        self._now += self._random.expovariate(20)
        plan = self._scheduler.schedule(self._now)
        self._put_fields(plan, PLAN_FIELDS)
        self._moves += zip(plan.move_ids.tolist(), plan.move_kinds.tolist(), strict=True)
        if plan:
            num_samples = len(plan.sample_seqs)
            self._outside()
            self._now += self._random.expovariate(20)
            sampled = np.array([self._random.randrange(FEW_TOKENS) for _ in range(num_samples)], np.int32)
            self._put_fields(self._scheduler.commit(sampled, self._now), OUTPUT_FIELDS)
        elif not self._moves:
            self._now += self._random.random() * 0.2
        self._end_moves()

    def _outside(self) -> None:
        """What comes from gateways, between two calls of the loop."""
        rng = self._random
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            self._add_request()
        if rng.random() < 0.15:
            self._put("abort", self._scheduler.abort(rng.randint(1, self._next_id)))
        if rng.random() < 0.03:
            self._put("reset", self._scheduler.reset_prefix_cache())
        if rng.random() < 0.3:
            self._advise()

    def _tokens(self) -> list[int]:
        rng = self._random
        return [rng.randrange(FEW_TOKENS) for _ in range(rng.randint(1, 14))]

    def _add_request(self) -> None:
        rng, prompt = self._random, self._tokens()
        options: dict[str, Any] = {
            "request_class": rng.randrange(3),
            "priority": rng.randint(-2, 2),
            "arrival_time": max(0, self._now - rng.random()),
            "cache_salt": rng.choice(["", "", "o"]),
            "tenant": rng.choice(["", "t"]),
        }
        if rng.random() < 0.5:
            options["ttft_target"] = rng.random()
        if rng.random() < 0.5:
            options["itl_target"] = rng.random() * 0.1
        if rng.random() < 0.5:
            options["session_id"] = rng.choice("abcd")
        if rng.random() < 0.3:
            options["stop_token_ids"] = [2]
        options |= {"max_tokens": rng.randint(1, 16), "min_tokens": rng.choice([0, 0, 3])}
        self._put("add", self._scheduler.add_request(self._next_id, prompt, **options).name)
        self._next_id += 1

    def _advise(self) -> None:
        rng = self._random
        draft = self._tokens() if rng.random() < 0.5 else []
        report = self._scheduler.advise(
            rng.choice("abcde"), rng.randrange(5), self._now, tenant=rng.choice(["", "t"]),
            cache_salt=rng.choice(["", "o"]), lease_seconds=rng.choice([0, 0.5, 3]), draft_token_ids=draft,
        )  # fmt: skip
        self._put("advise", report)

    def _end_moves(self) -> None:
        """The oldest ones; some of the disk's fail."""
        rng = self._random
        if not self._moves or rng.random() >= 0.7:
            return
        count = rng.randint(1, len(self._moves))
        ended, self._moves = self._moves[:count], self._moves[count:]
        failed = [move for move in ended if move[1] in (MoveKind.STORE, MoveKind.FETCH) and rng.random() < 0.1]
        done = [move[0] for move in ended if move not in failed]
        self._scheduler.complete_moves(done, [move[0] for move in failed])


def digests() -> Iterator[tuple[str, str]]:
    """Name and digest of each history; one entry, and why, for a policy that refuses a configuration."""
    for policy in POLICIES:
        for name, configuration in CONFIGURATIONS.items():
            for seed in range(NUM_SEEDS):
                try:
                    history = History(policy, configuration, seed)
                except ValueError as error:
                    yield f"{policy}/{name}/{seed}", f"refused: {error}"
                    break
                yield f"{policy}/{name}/{seed}", history.digest()


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The histories that were decided differently, or that only one has."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="file to write the digests to")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("ONE", "OTHER"), help="files written before")
    args = parser.parse_args(arguments)
    if (args.out is None) == (args.compare is None):
        parser.error("give a file to write, or two to compare")
    if args.compare is None:
        found = dict(digests())
        args.out.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} histories")
        return 0
    one, other = (json.loads(path.read_text()) for path in args.compare)
    changed = differences(one, other)
    print("\n".join(changed[:20]), f"{len(changed)} of {len(one)} histories differ", sep="\n" if changed else "")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
