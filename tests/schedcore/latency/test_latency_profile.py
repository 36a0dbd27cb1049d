from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schedcore._core import algorithms
from schedcore.latency.latency_profile import (
    LatencyCoefficients,
    LatencyProfile,
    error_statistics,
    load_profile,
    save_profile,
    shipped_profiles,
)


def decode_batch(num_decodes: int, context: int) -> algorithms.BatchFeatures:
    batch = algorithms.LatencyBatch(8192)
    for _ in range(num_decodes):
        batch.add_decode(context)
    return batch.features


def profile() -> LatencyProfile:
    error = error_statistics([1.0, 2.0], [1.0, 4.0])
    return LatencyProfile(model="m", device="d", coefficients=LatencyCoefficients(decode_seq=0.5), error=error)


def test_profile_survives_the_file(tmp_path: Path) -> None:
    save_profile(profile(), tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile()


def test_profile_predicts() -> None:
    assert profile().to_model().predict(decode_batch(4, 100)) == 2.0


def test_error_statistics_are_relative() -> None:
    error = error_statistics([1.0, 3.0, 8.0], [1.0, 4.0, 4.0])
    assert (error.mean, error.median, error.num_samples) == (pytest.approx(1.25 / 3), 0.25, 3)
    with pytest.raises(ValueError, match="no samples"):
        error_statistics([], [])


@pytest.mark.parametrize("bad", [{"decode_seq": -1.0}, {"overlap": 1.5}, {"prefill_token": float("nan")}])
def test_impossible_coefficients_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        LatencyCoefficients(**bad)


def test_unknown_fields_and_forms_are_refused(tmp_path: Path) -> None:
    raw = msgspec.to_builtins(profile())
    for change in ({"form": "cubic"}, {"colour": "red"}):
        (tmp_path / "p.json").write_bytes(msgspec.json.encode(raw | change))
        with pytest.raises(msgspec.ValidationError, match=str(next(iter(change)))):
            load_profile(tmp_path / "p.json")


def test_shipped_profiles_name_their_source_and_limits_and_are_plausible() -> None:
    profiles = shipped_profiles()
    assert {p.device for p in profiles.values()} == {"A100", "H100"}
    for shipped in profiles.values():
        assert shipped.source
        assert shipped.limits
        assert shipped.error.mean < 0.05
        assert 0.003 < shipped.to_model().predict(decode_batch(16, 512)) < 0.06


def test_a_faster_device_is_faster() -> None:
    a100, h100 = (shipped_profiles()[f"llama-2-7b-hf_{gpu}_tp1"].to_model() for gpu in ("a100", "h100"))
    for features in (decode_batch(1, 64), decode_batch(200, 2000)):
        assert h100.predict(features) < a100.predict(features)
