"""A latency profile: how long a batch takes for one model on one device, as JSON, with its error.

The model itself is cpp/core/estimates/latency_model.h. `hocket calibrate` writes profiles; profiles/ holds fitted ones.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import algorithms

FORMS = ("corrected", "echo")
FIRST_MARGIN = 2.3  # of deadlines over predicted times, until the scheduler knows how far predictions are off
NUM_RATIOS = 41  # quantiles of measured over predicted step times that a profile keeps


class LatencyCoefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Not negative. Where Echo's form reads a field differently, or not at all (*), the comment says so."""

    step_base: float = 0.0  # * seconds that every step costs
    prefill_floor: float = 0.0  # c0, seconds that prefill costs at least
    prefill_pair: float = 0.0  # alpha, seconds per (c+n)^2 - c^2 of a chunk of n tokens at context c; Echo: per n^2
    prefill_token: float = 0.0  # beta, seconds per token
    prefill_context: float = 0.0  # * seconds per token of context before a chunk
    prefill_chunk: float = 0.0  # * seconds per chunk
    decode_base: float = 0.0  # * tau0, seconds
    decode_seq: float = 0.0  # * kappa, seconds per decode
    decode_context: float = 0.0  # delta, seconds per token of context, summed over decodes; Echo: of their mean
    decode_max_context: float = 0.0  # gamma, seconds per token of the largest context
    decode_far_context: float = 0.0  # * seconds per token of those contexts beyond near_context, in addition
    hidden_token: float = 0.0  # * rho, seconds per hidden-cached token
    overlap: float = 1.0  # lambda: share of the smaller part that is hidden by the larger; Echo: weight of the larger
    near_context: float = 0.0  # * tokens of context that stay in the processor's caches from step to step
    near_evicted: float = 0.0  # * tokens of those contexts that a token of a chunk drives from there

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        if self.overlap > 1:
            raise ValueError("overlap must not exceed 1")


class ErrorStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of |predicted - measured| / measured."""

    mean: float
    median: float
    p95: float
    num_samples: int


class LatencyProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Coefficients, and what they may be trusted for."""

    model: str
    device: str
    num_devices: int = 1  # tensor parallel
    form: str = "corrected"
    coefficients: LatencyCoefficients
    error: ErrorStatistics  # on samples that the fit has not seen
    # Quantiles of measured over predicted times at equal steps from 0 to 1: what single steps, repeated, are off by.
    error_ratios: tuple[float, ...] = ()  # empty: not known
    error_source: str = ""  # where they come from, and what is assumed
    source: str = ""  # where the measurements come from
    limits: str = ""  # where the profile stops being true
    host_bytes_per_second: float = 0.0  # from the host tier to the device; 0: not measured

    def __post_init__(self) -> None:
        if not self.host_bytes_per_second >= 0:
            raise ValueError("host_bytes_per_second must not be negative")
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}")
        ratios = self.error_ratios
        if not all(ratio > 0 for ratio in ratios) or list(ratios) != sorted(ratios):
            raise ValueError("error_ratios must be positive and ascend")

    def to_model(self) -> algorithms.LatencyModel:
        return core_model(self.form, self.coefficients)


def core_model(form: str, coefficients: LatencyCoefficients) -> algorithms.LatencyModel:
    return algorithms.LatencyModel(form, algorithms.LatencyCoefficients(**msgspec.structs.asdict(coefficients)))


def error_statistics(predicted: npt.ArrayLike, measured: npt.ArrayLike) -> ErrorStatistics:
    """Seconds, arrays of one length; measured > 0. Raises ValueError if there is none."""
    errors = np.abs(np.asarray(predicted, float) - np.asarray(measured, float)) / np.asarray(measured, float)
    if errors.size == 0:
        raise ValueError("no samples")
    return ErrorStatistics(
        mean=float(errors.mean()),
        median=float(np.median(errors)),
        p95=float(np.percentile(errors, 95)),
        num_samples=errors.size,
    )


def ratio_quantiles(ratios: npt.ArrayLike) -> tuple[float, ...]:
    """As a profile keeps them; `ratios`: measured over predicted, at least one."""
    quantiles = np.quantile(np.asarray(ratios, float), np.linspace(0, 1, NUM_RATIOS))
    return tuple(round(float(ratio), 5) for ratio in quantiles)


def save_profile(profile: LatencyProfile, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")


def load_profile(path: Path) -> LatencyProfile:
    """Raises msgspec.ValidationError if the file is not a profile, OSError if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=LatencyProfile)


def read_profile(path: Path) -> LatencyProfile:
    """Of a user. Raises ValueError that says what is wrong with the file."""
    try:
        return load_profile(path)
    except OSError as error:
        raise ValueError(f"the latency profile {path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no latency profile (hocket calibrate writes one): {error}") from None


def shipped_profiles() -> dict[str, LatencyProfile]:
    """Name -> profile, of those that come with hocket."""
    files = sorted(resources.files("schedcore").joinpath("profiles").iterdir(), key=lambda file: file.name)
    json_files = [file for file in files if file.name.endswith(".json")]
    return {f.name.removesuffix(".json"): msgspec.json.decode(f.read_bytes(), type=LatencyProfile) for f in json_files}
