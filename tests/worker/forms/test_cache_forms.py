"""What of the cache's forms reaches the scheduler, by model and configuration."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from schedcore.api.config import EngineConfig
from worker.forms.cache_forms import form_settings, has_forms, has_int8_rows, hidden_ratio, max_guessed_tokens
from worker.models.model_config import ModelConfig, parse_model_config


def model(num_heads: int, num_kv_heads: int, head_dim: int | None = None) -> ModelConfig:
    return parse_model_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 100,
            "hidden_size": 64,
            "num_hidden_layers": 6,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_kv_heads,
            "head_dim": head_dim,
            "intermediate_size": 64,
            "max_position_embeddings": 1024,
        }
    )


MULTI_HEAD, GROUPED = model(4, 4), model(4, 1)


def settings(of: ModelConfig, **fields: Any) -> dict[str, Any]:
    return form_settings(EngineConfig(model="m", **fields), of)


@pytest.mark.parametrize(
    ("shape", "ratio"),
    [
        (MULTI_HEAD, 0.5),
        (model(4, 2, head_dim=32), 0.5),  # heads wider than the hidden size over their number, as Qwen3-0.6B's
        (model(4, 2), 1.0),
        (GROUPED, 2.0),
    ],
)
def test_hidden_states_take_whole_units(shape: ModelConfig, ratio: float) -> None:
    assert hidden_ratio(shape) == ratio


def test_by_default_there_is_only_k_and_v() -> None:
    assert settings(MULTI_HEAD) == {}


def test_automatic_kinds_are_offered_where_they_gain(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert settings(MULTI_HEAD, cache_kinds="auto")["hidden_units_per_group"] == 1
        assert "hidden_units_per_group" not in settings(GROUPED, cache_kinds="auto")
    taken, refused = caplog.messages
    assert "0.5 times the memory" in taken
    assert "K and V only" in refused
    assert "2 times the memory" in refused


def test_hidden_states_that_gain_nothing_are_refused_if_asked_for() -> None:
    with pytest.raises(ValueError, match=r"cache_kinds hidden gains nothing on this model: .* 2 times"):
        settings(GROUPED, cache_kinds="hidden", policy="fcfs")


def test_int8_is_for_every_model_and_needs_no_workspace() -> None:
    for shape in (MULTI_HEAD, GROUPED):
        assert settings(shape, cache_kinds="int8") == {"int8_units_per_group": 1}
        assert settings(shape, cache_kinds="int8", policy="fcfs") == {"int8_units_per_group": 1, "cache_kind": "int8"}
        config = EngineConfig(model="m", cache_kinds="int8")
        assert has_int8_rows(config)
        assert not has_forms(config, shape)
    assert not has_int8_rows(EngineConfig(model="m", kv_cache_dtype="int8"))


def test_partial_caching_is_for_every_model() -> None:
    made = settings(GROUPED, partial_caching=True, enable_prefix_caching=False)
    assert made == {"enable_partial_caching": True}


def test_a_pool_has_a_workspace_where_other_forms_are_possible() -> None:
    def possible(of: ModelConfig, **fields: Any) -> bool:
        return has_forms(EngineConfig(model="m", **fields), of)

    assert not possible(MULTI_HEAD)
    assert possible(MULTI_HEAD, cache_kinds="auto")
    assert not possible(GROUPED, cache_kinds="auto")
    assert possible(GROUPED, partial_caching=True, enable_prefix_caching=False)


@pytest.mark.parametrize(
    ("shape", "fields", "is_told"),
    [
        (GROUPED, {"partial_caching": True}, True),
        (MULTI_HEAD, {"cache_kinds": "auto"}, True),
        (GROUPED, {"cache_kinds": "auto"}, False),  # keeps K and V only
        (GROUPED, {"cache_kinds": "int8"}, False),
        (GROUPED, {}, False),
    ],
)
def test_who_asks_for_guesses_where_nobody_guesses_is_told(
    shape: ModelConfig, fields: dict[str, Any], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings(shape, speculation="auto", **fields)
    assert (max_guessed_tokens(EngineConfig(model="m", speculation="auto", **fields), shape) == 0) == is_told
    assert ("nothing is guessed" in caplog.text) == is_told
