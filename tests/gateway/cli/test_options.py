"""Flags, the file and the defaults become configurations."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.options import OptionsError, add_options, engine_config, gateway_config, read_file, size_in_bytes
from gateway.config.config import GatewayConfig
from schedcore.api.config import EngineConfig
from schedcore.api.scheduler_options import parse_scheduler_options
from schedcore.api.setting import settings


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="hocket serve")
    add_options(made)
    return made


def parsed(*arguments: str) -> dict[str, Any]:
    return vars(parser().parse_args(arguments))


def engine(*arguments: str) -> EngineConfig:
    return engine_config(parsed(*arguments), Path("/models/m"), "m")


def gateway(*arguments: str, keys: tuple[str, ...] = ()) -> GatewayConfig:
    return gateway_config(parsed(*arguments), "m", keys)


def test_without_options_the_configurations_defaults_hold() -> None:
    assert parsed() == {}
    assert engine() == EngineConfig(model="/models/m", served_model_name="m")
    assert gateway() == GatewayConfig(served_model_names=("m",))


def test_offline_steps_are_short_beside_a_target_for_the_first_token() -> None:
    assert engine("--ttft-target-ms", "200").max_offline_step_ms == 50
    assert engine("--ttft-target-ms", "4000").max_offline_step_ms == 100
    assert engine("--ttft-target-ms", "200", "--max-offline-step-ms", "80").max_offline_step_ms == 80
    keys = ("--api-key-targets", "a:ttft=100,itl=5", "--api-key-targets", "b:itl=5")
    assert engine("--ttft-target-ms", "200", *keys).max_offline_step_ms == 25
    assert engine(*keys).max_offline_step_ms == 25


def test_a_target_for_the_first_token_says_who_is_refused() -> None:
    assert engine().max_ttft_ms == 120_000
    assert engine("--ttft-target-ms", "4000").max_ttft_ms == 3200
    assert engine("--ttft-target-ms", "500").max_ttft_ms == 1000  # who is refused would come back a second later
    assert engine("--ttft-target-ms", "500", "--max-ttft-ms", "0").max_ttft_ms == 0


def test_parts_of_the_policy_can_be_switched_off_one_by_one(tmp_path: Path) -> None:
    options = ("enable_plan_search=false", "past_target_decay=0.4")
    given = [f"--scheduler-option={option}" for option in options]
    assert parse_scheduler_options(engine(*given).scheduler_options, enable_chunked_prefill=True) == {
        "enable_plan_search": False,
        "past_target_decay": 0.4,
    }
    file = tmp_path / "options.toml"
    file.write_text('scheduler_option = ["enable-reserve=off"]')
    assert read_file(file, parser())["scheduler_option"] == ["enable-reserve=off"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("enable_plan_search", "is not NAME=VALUE with one of deadline_quantile"),
        ("num_units=5", "is not NAME=VALUE with one of deadline_quantile"),
        ("enable_reserve=perhaps", "enable_reserve must be true or false, not 'perhaps'"),
        ("past_target_decay=much", "past_target_decay must be a number, not 'much'"),
        ("past_target_decay=7", "past_target_decay must be between 0 and 1"),
        ("starving_turn_ms=-1", "starving_turn_ms must not be negative"),
        ("enable_mixed_steps=false", "enable_mixed_steps=false needs enable_chunked_prefill=false"),
        ("token_composition=sorted", "token_composition must be one of greedy, fastgen"),
    ],
)
def test_a_wrong_scheduler_option_is_named(option: str, message: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(message)):
        engine("--scheduler-option", option)


def test_flags_of_vllm_reach_the_engine() -> None:
    config = engine(
        *("--dtype", "bfloat16", "--max-model-len", "512", "--block-size", "32", "--max-num-seqs", "8"),
        *("--max-num-batched-tokens", "256", "--seed", "7", "--kv-cache-memory-bytes", "2G", "--device", "cpu"),
        *("--scheduling-policy", "priority", "--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
        *("--decision-record", "decisions", "--quantization", "int8"),
    )
    assert config == EngineConfig(
        model="/models/m",
        served_model_name="m",
        dtype="bfloat16",
        max_model_len=512,
        block_size=32,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        seed=7,
        cache_memory_bytes=2 * 2**30,
        device="cpu",
        policy="priority",
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        decision_record="decisions",
        quantization="int8",
    )


def test_cache_forms_reach_the_engine() -> None:
    assert engine("--cache-kinds", "auto").cache_kinds == "auto"
    assert engine("--cache-kinds", "hidden", "--scheduling-policy", "fcfs").cache_kinds == "hidden"
    assert engine("--cache-kinds", "int8").cache_kinds == "int8"
    config = engine("--partial-caching")
    assert config.partial_caching
    assert config.enable_prefix_caching
    assert config.cache_kinds == "kv"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--cache-kinds", "auto", "--scheduling-policy", "fcfs"),
            "cache_kinds auto needs policy apt or hocket, not fcfs",
        ),
        (("--kv-cache-dtype", "int8", "--cache-kinds", "auto"), "int8 keeps K and V only: cache_kinds must be kv, not"),
        (("--cache-kinds", "int8", "--scheduling-policy", "echo"), "needs policy apt or hocket or fcfs, not echo"),
        (("--cache-kinds", "int8", "--partial-caching"), "int8 keeps every token: partial_caching must be off"),
        (("--kv-cache-dtype", "int8", "--partial-caching"), "int8 keeps every token: partial_caching must be off"),
        (("--cache-kinds", "hidden"), "cache_kinds hidden needs policy fcfs, not hocket"),
        (("--partial-caching", "--scheduling-policy", "bs"), "partial_caching needs policy ellm or hocket, not bs"),
    ],
)
def test_cache_forms_that_nobody_would_decide_about_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        engine(*arguments)


def test_flags_reach_the_gateway() -> None:
    config = gateway(
        *("--host", "0.0.0.0", "--port", "9", "--api-key", "a", "--api-key", "b", "--api-key", "c", "--no-access-log"),
        *(
            "--served-model-name",
            "x",
            "--served-model-name",
            "y",
            "--request-timeout-ms",
            "50",
            "--ttft-target-ms",
            "200",
            "--tpot-target-ms",
            "30",
            "--api-key-targets",
            "a:ttft=100",
            "--api-key-targets",
            "b:itl=50,tpot=20",
        ),
    )
    assert config == GatewayConfig(
        host="0.0.0.0",
        port=9,
        api_keys=("a", "b", "c"),
        enable_access_log=False,
        served_model_names=("x", "y"),
        request_timeout_ms=50.0,
        ttft_target_ms=200.0,
        tpot_target_ms=30.0,
        api_key_targets=("a:ttft=100", "b:itl=50,tpot=20"),
    )


def test_keys_of_the_command_line_replace_those_of_the_environment() -> None:
    assert gateway(keys=("env",)).api_keys == ("env",)
    assert gateway("--api-key", "flag", keys=("env",)).api_keys == ("flag",)


def test_a_model_after_a_key_is_no_second_key() -> None:
    assert parsed("--api-key", "secret", "my/model") == {"api_key": ["secret"], "model": "my/model"}


def test_every_option_ends_up_in_a_configuration() -> None:
    """No flag is read and then forgotten."""
    fields = set(EngineConfig.__struct_fields__) | set(GatewayConfig.__struct_fields__)
    renamed = {
        "scheduling_policy",
        "scheduler_option",
        "kv_cache_memory_bytes",
        "api_key",
        "vllm_option",
        "served_model_name",
        "access_log",
        "offline",
        "prefix_order",
        "json_whitespace",
    }
    renamed |= {"typing_webhook_secret", "webhook_url", "webhook_secret_file"}
    for action in parser()._actions:
        if action.dest not in ("help", "model", "config", "chat_template", "vllm_flags"):
            assert action.dest in fields | renamed, action.dest


def test_every_flag_that_a_setting_declares_is_there() -> None:
    declared = [s.destination for s in (*settings(EngineConfig), *settings(GatewayConfig)) if s.flag]
    others = {"help", "model", "config", "chat_template"}
    shown = [action.dest for action in parser()._actions if action.help != argparse.SUPPRESS]
    assert sorted(declared) == sorted(destination for destination in shown if destination not in others)


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("2K", 2048), ("1.5MiB", 3 * 2**19), ("2g", 2**31), ("1TB", 2**40)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "2X", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size_in_bytes(text)


def write(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "hocket.toml"
    path.write_text(content)
    return path


def test_file_takes_the_same_names(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        model = "some/model"
        port = 9000
        api-key = ["a", "b"]
        max_num_seqs = 4
        enable-prefix-caching = false
        kv-cache-memory-bytes = "1G"
        """,
    )
    assert read_file(path, parser()) == {
        "model": "some/model",
        "port": 9000,
        "api_key": ["a", "b"],
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 2**30,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no-such-option = 1", "no option 'no-such-option'"),
        ("port = ", "cannot be read"),
        ('config = "x"', "config"),
        ("port = {day = 2020-01-01}", "'port' cannot be written as JSON"),
    ],
)
def test_wrong_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        read_file(write(tmp_path, content), parser())


def test_recorded_decodes() -> None:
    chosen = engine("--enforce-eager", "--max-cudagraph-capture-size", "64")
    assert (chosen.enforce_eager, chosen.max_cudagraph_capture_size) == (True, 64)
    with pytest.raises(OptionsError, match="must be at least 1; enforce_eager does without"):
        engine("--max-cudagraph-capture-size", "0")


def test_impossible_values_are_named() -> None:
    with pytest.raises(OptionsError, match="port"):
        gateway("--port", "70000")
    with pytest.raises(OptionsError, match="block_size"):
        engine("--block-size", "1000")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_is_not_exposed(host: str) -> None:
    assert not GatewayConfig(host=host).is_exposed


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "some.host"])
def test_other_addresses_are_exposed(host: str) -> None:
    assert GatewayConfig(host=host).is_exposed


@pytest.mark.parametrize(
    "arguments",
    [
        ("--allowed-origins", "https://a.example", "--allowed-origins", "app://b"),
        ("--allowed-origins", "https://a.example, app://b"),
        ("--allowed-origins", '["https://a.example", "app://b"]'),  # as for vllm serve
    ],
)
def test_lists_of_names_may_be_written_in_three_ways(arguments: tuple[str, ...]) -> None:
    assert gateway(*arguments).allowed_origins == ("https://a.example", "app://b")


@pytest.mark.parametrize(
    "arguments",
    [("--allowed-hosts", "https://a.example"), ("--allowed-hosts", "a:80"), ("--allowed-origins", "a.example")],
)
def test_names_and_origins_are_not_mistaken_for_each_other(arguments: tuple[str, ...]) -> None:
    with pytest.raises(OptionsError, match="allowed_"):
        gateway(*arguments)
