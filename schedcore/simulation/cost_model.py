"""How long a simulated step takes: a latency model (cpp/core/estimates/latency_model.h), and where it comes from.

Measured profiles exist for a few models and devices. For another shape the nearest one is scaled, term by term, by what
the term is proportional to: weights for everything that a token is multiplied with, heads for attention over pairs of
tokens, cache bytes for attention that reads the cache. That is an estimate, and its name says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from schedcore._core import algorithms
from schedcore.latency.latency_profile import (
    LatencyCoefficients,
    LatencyProfile,
    core_model,
    load_profile,
    shipped_profiles,
)
from schedcore.simulation.model_shape import MODEL_SHAPES, ModelShape, model_shape

# Names in profiles -> shapes
_PROFILE_SHAPES = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
}


@dataclass(frozen=True, slots=True)
class CostModel:
    name: str
    coefficients: LatencyCoefficients
    form: str = "corrected"
    source: str = ""  # for people
    error_ratios: tuple[float, ...] = ()  # of LatencyProfile

    def to_core(self) -> algorithms.LatencyModel:
        return core_model(self.form, self.coefficients)


def linear_cost(name: str, c0: float, c1: float, c2: float, c3: float, c4: float, source: str = "") -> CostModel:
    """T_ms = c0 + c1 tokens + c2 decodes + c3 sum(decode context) + c4 sum(chunk (context + chunk / 2)).

    tokens counts those of decodes and chunks. Raises ValueError if c1 + c2 or another coefficient is negative.
    """
    coefficients = LatencyCoefficients(
        step_base=c0 / 1000,
        prefill_token=c1 / 1000,
        decode_seq=(c1 + c2) / 1000,
        decode_context=c3 / 1000,
        prefill_pair=c4 / 2000,
        overlap=0.0,
    )
    return CostModel(name, coefficients, source=source)


def profile_cost(name: str, profile: LatencyProfile) -> CostModel:
    return CostModel(name, profile.coefficients, profile.form, profile.source, profile.error_ratios)


def scaled_coefficients(
    coefficients: LatencyCoefficients, measured: ModelShape, wanted: ModelShape
) -> LatencyCoefficients:
    work = wanted.num_layers * wanted.layer_weights / (measured.num_layers * measured.layer_weights)
    pairs = wanted.attention_width / measured.attention_width
    cache = wanted.kv_bytes_per_token / measured.kv_bytes_per_token
    projection = wanted.projection_weights / measured.projection_weights
    return LatencyCoefficients(
        step_base=coefficients.step_base * work,
        prefill_floor=coefficients.prefill_floor * work,
        prefill_token=coefficients.prefill_token * work,
        prefill_context=coefficients.prefill_context * cache,
        prefill_chunk=coefficients.prefill_chunk * work,
        prefill_pair=coefficients.prefill_pair * pairs,
        decode_base=coefficients.decode_base * work,
        decode_seq=coefficients.decode_seq * work,
        decode_context=coefficients.decode_context * cache,
        decode_max_context=coefficients.decode_max_context * cache,
        decode_far_context=coefficients.decode_far_context * cache,
        hidden_token=coefficients.hidden_token * projection,
        overlap=coefficients.overlap,
        near_context=coefficients.near_context / cache,
        near_evicted=coefficients.near_evicted,
    )


def find_cost(shape: ModelShape, gpu: str, num_gpus: int = 1) -> CostModel:
    """From a profile's JSON file, if `gpu` names one, else from the shipped profiles. Raises ValueError, OSError."""
    if gpu.endswith(".json"):
        profile = read_profile(Path(gpu))
        return profile_cost(f"{Path(gpu).name} ({profile.model} on {profile.device})", profile)
    profiles = _profiles_on(gpu, num_gpus)
    for name, profile in profiles.items():
        if _PROFILE_SHAPES[profile.model] == shape.name:
            return profile_cost(name, profile)
    name, profile = min(profiles.items(), key=lambda item: _distance(shape, item[1]))
    measured = model_shape(_PROFILE_SHAPES[profile.model])
    coefficients = scaled_coefficients(profile.coefficients, measured, shape)
    scaled = f"{shape.name} scaled from {name}"
    return CostModel(scaled, coefficients, profile.form, profile.source, profile.error_ratios)


def measured_devices() -> list[tuple[str, int]]:
    """Devices and how many of them: what the shipped profiles of known shapes cover."""
    profiles = shipped_profiles().values()
    return sorted({(p.device, p.num_devices) for p in profiles if p.model in _PROFILE_SHAPES})


def read_profile(path: Path) -> LatencyProfile:
    """Raises ValueError, OSError."""
    try:
        return load_profile(path)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no latency profile: {error}") from None


def _profiles_on(gpu: str, num_gpus: int) -> Mapping[str, LatencyProfile]:
    shipped = {name: profile for name, profile in shipped_profiles().items() if profile.model in _PROFILE_SHAPES}
    on_gpu = {
        name: profile
        for name, profile in shipped.items()
        if profile.device.lower() == gpu.lower() and profile.num_devices == num_gpus
    }
    if not on_gpu:
        known = sorted({f"{profile.num_devices} x {profile.device}" for profile in shipped.values()})
        raise ValueError(f"there is no latency profile for {num_gpus} x {gpu}; known: {', '.join(known)}")
    return on_gpu


def _distance(shape: ModelShape, profile: LatencyProfile) -> tuple[float, float]:
    """Attention first: kernels differ in how many heads share a cache. Then size."""
    measured = MODEL_SHAPES[_PROFILE_SHAPES[profile.model]]
    sharing = abs(shape.num_heads / shape.num_kv_heads - measured.num_heads / measured.num_kv_heads)
    return sharing, abs(shape.num_parameters - measured.num_parameters)
