"""What the advisor believes of vLLM's step times before it has seen any: a few steps, and rules of thumb."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from schedcore._core import algorithms
from schedcore.latency.latency_profile import FIRST_MARGIN, LatencyCoefficients, core_model, read_profile
from schedcore.record.recipe import Recipe

FORM = "corrected"  # of the latency model, where it is not a profile's
FEW_TOKENS, MANY_TOKENS = 4, 260
DEVIATION = 2.0  # how far off a coefficient may be, relative: little is known yet
CALIBRATED_DEVIATION = 0.3  # the same of those that `hocket calibrate` has measured
BEFORE_ANY = LatencyCoefficients(step_base=0.01, prefill_token=1e-4, decode_seq=1e-4, decode_context=1e-8, overlap=0.0)


class Beliefs(NamedTuple):
    coefficients: LatencyCoefficients
    form: str = FORM
    deviation: float = DEVIATION

    def estimates(self) -> Recipe:
        known = Recipe("LatencyCoefficients", msgspec.structs.asdict(self.coefficients))
        latency = Recipe("LatencyModel", {"form": self.form, "coefficients": known})
        off = {"latency_deviation": self.deviation, "latency_margin": FIRST_MARGIN}
        return Recipe("Estimates", {"latency": latency, **off})

    def latency_model(self) -> algorithms.LatencyModel:
        return core_model(self.form, self.coefficients)


def estimates(coefficients: LatencyCoefficients) -> Recipe:
    return Beliefs(coefficients).estimates()


def beliefs_of(core: Any, max_tokens: int, profile: Path | None) -> Beliefs:
    """By the profile, or by a few steps of the idle vllm EngineCore. Raises ValueError: the file is no profile."""
    if profile is None:
        return Beliefs(first_estimate(core, max_tokens))
    read = read_profile(profile)
    return Beliefs(read.coefficients, read.form, CALIBRATED_DEVIATION)


def first_estimate(core: Any, max_tokens: int, clock: Callable[[], float] = time.perf_counter) -> LatencyCoefficients:
    """Serves two prompts on an idle vllm EngineCore, each twice: what is compiled on its way is not counted."""
    many = min(MANY_TOKENS, max_tokens)
    for num_tokens in (FEW_TOKENS, many):  # of other tokens, so that nothing is cached
        _serve(core, num_tokens, 1, clock)
    (few_prefill, decode), (many_prefill, _) = (_serve(core, n, 2, clock) for n in (FEW_TOKENS, many))
    per_token = max((many_prefill - few_prefill) / max(1, many - FEW_TOKENS), 0.005 * decode)
    return LatencyCoefficients(
        step_base=0.8 * decode,
        prefill_token=per_token,
        decode_base=0.1 * decode,
        decode_seq=per_token,
        decode_context=1e-4 * per_token,
        overlap=0.0,
    )


def _serve(core: Any, num_tokens: int, token: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of the prompt's step and of the shortest one after it."""
    name = f"first-{num_tokens}-{token}"
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, detokenize=False)
    request = EngineCoreRequest(name, [token] * num_tokens, None, params, None, time.time(), None, None, None)
    core.add_request(*core.preprocess_add_request(request))
    seconds, last, is_over = [], clock(), False
    while not is_over:
        outputs, is_executed = core.step_fn()
        core.post_step(is_executed)
        every = [output for of_client in (outputs or {}).values() for output in of_client.outputs]
        if any(output.new_token_ids for output in every):
            now = clock()
            seconds.append(now - last)
            last = now
        is_over = any(output.finished for output in every)
    return seconds[0], min(seconds[1:])
