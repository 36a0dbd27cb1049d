"""Engines that guess what requests will say next, and requests of every kind to serve with and without."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from fakes.engine_driver import make_engine
from schedcore.api.types import EngineRequest, FinishReason, SamplingParams, TokenDelta
from schedcore.latency.latency_profile import ErrorStatistics, LatencyCoefficients, LatencyProfile
from worker.process.engine import Engine

DEMO_MODEL = Path(__file__).parents[2] / "worker" / "demo_model"
CHEAP = LatencyCoefficients(step_base=0.01, prefill_token=1e-5, decode_seq=1e-5)  # a token more takes next to no time
VOCAB_SIZE = 1024


def cheap_profile(folder: Path) -> str:
    """A file by which guesses pay wherever there is a chance."""
    error = ErrorStatistics(mean=0.0, median=0.0, p95=0.0, num_samples=1)
    made = LatencyProfile(model="demo", device="none", coefficients=CHEAP, error=error)
    path = folder / "profile.json"
    path.write_bytes(msgspec.json.encode(made))
    return str(path)


def guessing(profile: str, folder: Path = DEMO_MODEL, **settings: Any) -> Engine:
    defaults = {"speculation": "auto", "latency_profile": profile, "max_num_seqs": 48, "max_ttft_ms": 0}
    return make_engine(folder, **{**defaults, **settings})


def repetitive_prompts(num: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    parts = [[rng.randrange(6, VOCAB_SIZE) for _ in range(rng.randrange(3, 20))] for _ in range(num)]
    return [part * rng.randrange(2, 5) + part[: rng.randrange(2, len(part))] for part in parts]


def sampled_requests(num: int, seed: int) -> list[EngineRequest]:
    """Half of them seeded, half greedy, with whatever the sampler knows."""
    rng = random.Random(seed)
    requests = []
    for i, prompt in enumerate(repetitive_prompts(num, seed)):
        extras: dict[str, Any] = rng.choice(
            [
                *[{}, {"top_p": 0.9}, {"min_p": 0.05, "top_k": 30}, {"num_logprobs": 2}],
                {"logit_bias": {rng.randrange(VOCAB_SIZE): 4.0, rng.randrange(VOCAB_SIZE): -4.0}},
                {"repetition_penalty": 1.1},
                {"presence_penalty": 0.4, "frequency_penalty": 0.2, "num_logprobs": 0},
                {"bad_words": [[rng.randrange(VOCAB_SIZE)], prompt[:2], prompt[1:4]]},
                {"allowed_token_ids": sorted(rng.sample(range(VOCAB_SIZE), 200) + prompt)},
            ]
        )
        random_ones: dict[str, Any] = {"temperature": rng.choice([0.3, 0.8]), "seed": rng.randrange(2**40)}
        sampling = SamplingParams(**({"temperature": 0.0} if i % 2 else random_ones), **extras)
        stops = rng.sample(range(VOCAB_SIZE), rng.choice([0, 0, 40]))
        requests.append(
            EngineRequest(
                i + 1,
                prompt,
                rng.randrange(1, 80),
                stop_token_ids=stops,
                min_tokens=rng.choice([0, 10]),
                sampling=sampling,
            )
        )
    return requests


Outcome = tuple[list[int], list[Any], FinishReason, int | None]


def outcome(deltas: list[TokenDelta]) -> Outcome:
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    return tokens, logprobs, deltas[-1].finish_reason, deltas[-1].stop_token_id
