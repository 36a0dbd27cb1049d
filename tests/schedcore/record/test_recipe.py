"""What a recipe makes is what its arguments say, nested or not."""

from __future__ import annotations

import msgspec
import pytest

from schedcore._core import SchedulerConfig, algorithms
from schedcore.record.recipe import Recipe

COEFFICIENTS = {"step_base": 0.1 + 0.2, "decode_seq": 1e-7 / 3, "prefill_token": 5e-5, "overlap": 1 / 3}
LATENCY = Recipe("LatencyModel", {"form": "corrected", "coefficients": Recipe("LatencyCoefficients", COEFFICIENTS)})


def test_a_recipe_makes_objects_within_objects() -> None:
    features = algorithms.BatchFeatures(num_chunks=1.0, chunk_tokens=77.0, num_decodes=3.0, decode_context=900.0)
    expected = algorithms.LatencyModel("corrected", algorithms.LatencyCoefficients(**COEFFICIENTS))
    assert LATENCY.build().predict(features) == expected.predict(features)


def test_a_recipe_survives_msgpack_bit_by_bit() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(LATENCY), type=Recipe)
    assert again == LATENCY
    assert again.argument("coefficients", "step_base") == 0.1 + 0.2


def test_types_of_arguments_are_kept() -> None:
    arguments = {"a": 1, "b": 1.0, "c": True, "d": None, "e": "1", "f": float("inf")}
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(Recipe("SchedulerConfig", arguments)), type=Recipe)
    assert [(type(value), value) for value in again.arguments.values()] == [
        (type(value), value) for value in arguments.values()
    ]


def test_an_argument_that_was_not_given_is_none() -> None:
    assert LATENCY.argument("coefficients", "hidden_token") is None
    assert LATENCY.argument("form", "deeper") is None


def test_a_config_is_a_config() -> None:
    config = Recipe("SchedulerConfig", {"num_units": 64, "num_layers": 2, "layers_per_unit": 1}).build()
    assert isinstance(config, SchedulerConfig)
    assert config.num_groups == 2


@pytest.mark.parametrize("kind", ["NoSuchThing", "algorithms", "__name__", "knapsack_compact_units"])
def test_only_classes_of_the_core_can_be_made(kind: str) -> None:
    with pytest.raises(ValueError, match="the core has no class"):
        Recipe(kind, {}).build()


def test_what_the_core_refuses_is_refused() -> None:
    with pytest.raises(ValueError, match="num_units"):
        Recipe("SchedulerConfig", {"num_units": 0, "num_layers": 2}).build()
    with pytest.raises(TypeError):
        Recipe("SchedulerConfig", {"colour": "red"}).build()
