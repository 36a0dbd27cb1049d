from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from schedcore.api.config import VLLM_POLICY, EngineConfig
from vllm_engine.settings import advisor_settings, engine_arguments, tier_settings


def test_our_settings_are_vllms_arguments() -> None:
    config = EngineConfig(model="m", max_num_seqs=8, max_model_len=512, cache_memory_bytes=1 << 20, dtype="float32")
    arguments = engine_arguments(config)
    assert arguments["max_num_seqs"] == 8
    assert arguments["max_model_len"] == 512
    assert arguments["kv_cache_memory_bytes"] == 1 << 20
    assert "block_size" not in arguments, "the platform's own, unless it was asked for"
    assert arguments["distributed_executor_backend"] == "uni"


def test_a_tokenizer_is_read_where_there_is_one_for_grammars(tmp_path: Path) -> None:
    assert engine_arguments(EngineConfig(model=str(tmp_path)))["skip_tokenizer_init"]
    (tmp_path / "tokenizer.json").write_text("{}")
    assert not engine_arguments(EngineConfig(model=str(tmp_path)))["skip_tokenizer_init"]


def test_arguments_of_its_own_win() -> None:
    options = ("tensor_parallel_size=2", "--quantization=awq", 'rope={"a": 1}', "max_num_seqs=4")
    arguments = engine_arguments(EngineConfig(model="m", vllm_options=options))
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["quantization"] == "awq"
    assert arguments["rope"] == {"a": 1}
    assert arguments["max_num_seqs"] == 4
    assert "distributed_executor_backend" not in arguments


@pytest.mark.parametrize("option", ["tensor_parallel_size", "=2", "a b=2"])
def test_an_option_without_name_or_value(option: str) -> None:
    with pytest.raises(ValueError, match="NAME=VALUE"):
        engine_arguments(EngineConfig(model="m", vllm_options=(option,)))


def test_what_vllm_has_no_place_for_is_named() -> None:
    config = EngineConfig(model="m", quantization="int8", cache_kinds="auto")
    with pytest.raises(ValueError, match="quantization, cache_kinds"):
        engine_arguments(config)


def test_tiers_are_a_connector_of_ours() -> None:
    assert "kv_transfer_config" not in engine_arguments(EngineConfig(model="m"))
    config = EngineConfig(model="m", host_cache_bytes=1 << 30, disk_cache_dir="/d", disk_cache_bytes=32 << 20)
    transfer = engine_arguments(config)["kv_transfer_config"]
    assert transfer["kv_connector"] == "HocketConnector"
    assert transfer["kv_connector_extra_config"] == {"host_bytes": 1 << 30, "disk_dir": "/d", "disk_bytes": 31 << 20}
    assert tier_settings(EngineConfig(model="m", disk_cache_dir="/d")) is not None


def test_tiers_are_ours_or_vllms() -> None:
    arguments = engine_arguments(EngineConfig(model="m", vllm_options=("kv_offloading_size=8",)))
    assert arguments["kv_offloading_size"] == 8
    with pytest.raises(ValueError, match="not both"):
        engine_arguments(EngineConfig(model="m", host_cache_bytes=1 << 30, vllm_options=("kv_offloading_size=8",)))


def test_the_policy_and_what_it_weighs_go_to_the_advisor() -> None:
    config = EngineConfig(model="m", policy="echo", scheduler_options=("enable_reserve=false",))
    settings = advisor_settings(config)
    assert settings["policy"] == "echo"
    assert settings["enable_reserve"] is False


def test_no_limit_of_waiting_is_an_infinite_one() -> None:
    assert advisor_settings(EngineConfig(model="m", max_ttft_ms=500))["max_ttft_ms"] == 500
    assert advisor_settings(EngineConfig(model="m", max_ttft_ms=0))["max_ttft_ms"] == math.inf


def test_a_record_of_decisions_needs_some_of_ours(tmp_path: Path) -> None:
    config = EngineConfig(model="m", decision_record=str(tmp_path / "decisions"))
    engine_arguments(config)
    with pytest.raises(ValueError, match="nothing to record"):
        engine_arguments(msgspec.structs.replace(config, policy=VLLM_POLICY))
    (tmp_path / "decisions").touch()
    with pytest.raises(ValueError, match="exists already"):
        engine_arguments(config)
