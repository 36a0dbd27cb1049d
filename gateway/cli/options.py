"""The options of `hocket serve`: flags, the same names in a TOML or YAML file, and what they configure.

Which there are, and what they say, stands with the fields of EngineConfig and GatewayConfig
(`schedcore/api/setting.py`). Flags carry the names of `vllm serve` where the meaning is the same; what else it takes:
`vllm_flags.py`. The command line wins over the file, the file over the defaults.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from gateway.cli.parser import count, said
from gateway.cli.vllm_flags import add_vllm_flags
from gateway.config.config import GatewayConfig
from gateway.config.target_defaults import parse_key_targets
from schedcore.api.config import EngineConfig
from schedcore.api.setting import Setting, settings
from schedcore.latency.latency_profile import read_profile

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_GROUPS = ("server", "model", "engine", "fleet", "offline work", "limits")  # in the order of --help
MAX_TTFT_TARGETS = 0.8  # of the target for the first token: predictions err, and who comes in is to be in time
LEAST_MAX_TTFT_MS = 1000.0  # whoever is refused comes back no sooner than that
OFFLINE_STEP_SHARE, MOST_OFFLINE_STEP_MS = 0.25, 100.0  # of the target for the first token, and at most


class OptionsError(Exception):
    """One line that says which option is wrong."""


def size_in_bytes(text: str) -> int:
    """`512M`, `2G`, `1.5GiB`, `1000`; units are binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Only what is given ends up in the namespace, so that files and defaults can fill in the rest."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a Hugging Face directory or hub id (default: demo, a tiny model)"
    )
    parser.add_argument("--model", metavar="MODEL", help="the same")
    parser.add_argument(
        "--config", metavar="FILE", help="TOML or YAML file with options by the same names; flags win over it"
    )
    for title in _GROUPS:
        group = parser.add_argument_group(title)
        for setting in (*settings(GatewayConfig), *settings(EngineConfig)):
            if setting.flag is not None and setting.flag.group == title:
                add_flag(group, setting)
        if title == "model":  # of the checkpoint, which has no configuration
            group.add_argument("--chat-template", metavar="FILE", help="Jinja template instead of the checkpoint's")
    add_vllm_flags(parser)


def add_flag(group: argparse._ArgumentGroup, setting: Setting, **differently: Any) -> None:
    """As the setting declares it, except for what is said differently. REQUIRES: it has a flag."""
    flag = setting.flag
    assert flag is not None
    options: dict[str, Any] = {"help": flag.help, "default": argparse.SUPPRESS}
    if setting.kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif setting.choices is not None:
        options["choices"] = setting.choices.names
        options["type"] = setting.choices.named
    else:
        options["metavar"] = flag.metavar
        if setting.kind is tuple and flag.metavar != "FILE":  # what a file holds is named once
            options["action"] = "append"
        elif flag.metavar == "SIZE":
            options["type"] = size_in_bytes
        elif setting.field == "max_model_len":
            options["type"] = _context_length
        elif setting.kind in (int, float):
            options["type"] = count if setting.kind is int else float
    options |= differently
    options["help"] = options["help"].format(default=_shown(setting.default))
    group.add_argument(f"--{setting.destination.replace('_', '-')}", **options)


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:.0f}" if isinstance(default, float) else str(default)


def _context_length(text: str) -> int | None:
    """`auto` and -1, as in vLLM: what the checkpoint and the cache allow."""
    return None if text.strip() in ("auto", "-1") else count(text)


def read_file(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The options in a file, parsed as flags are. Raises OptionsError; the parser exits on a wrong value."""
    arguments: list[str] = []
    for key, value in _content(path).items():
        name = str(key).replace("_", "-")
        if name == "config":
            raise OptionsError(f"{path}: 'config' cannot be set in a file")
        if f"--{name}" not in parser._option_string_actions:
            raise OptionsError(f"{path}: there is no option '{key}'")
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            arguments += [f"--{name}={_as_argument(path, name, item)}" for item in value]
        elif value is not None:
            arguments.append(f"--{name}={_as_argument(path, name, value)}")
    return vars(parser.parse_args(arguments))


def _as_argument(path: Path, name: str, value: object) -> str:
    """What would be written after the flag; YAML has dates, sets and circles. Raises OptionsError."""
    try:
        return json.dumps(value) if isinstance(value, dict) else str(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionsError(f"{path}: '{name}' cannot be written as JSON: {error}") from None


def _content(path: Path) -> dict[Any, Any]:
    """Raises OptionsError."""
    is_yaml = path.suffix in (".yaml", ".yml")
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) if is_yaml else tomllib.loads(text)
    except OSError as error:
        raise OptionsError(said(error)) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        hint = "" if is_yaml else "; a file named .yaml or .yml is read as YAML"
        reason = " ".join(str(error).split())
        raise OptionsError(f"{path} cannot be read as {'YAML' if is_yaml else 'TOML'}: {reason}{hint}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise OptionsError(f"{path} must hold names and values")
    return content


def engine_config(options: Mapping[str, Any], model: Path, name: str) -> EngineConfig:
    """Raises OptionsError."""
    fields = given_fields(options, EngineConfig)
    fields |= {"model": str(model), "served_model_name": name}
    fields["scheduler_options"] = tuple(fields.get("scheduler_options", ()))
    try:
        if (tightest := _tightest_ttft_ms(options)) < math.inf:
            fields.setdefault("max_offline_step_ms", min(MOST_OFFLINE_STEP_MS, OFFLINE_STEP_SHARE * tightest))
        if (ttft_ms := options.get("ttft_target_ms")) is not None:
            fields.setdefault("max_ttft_ms", max(LEAST_MAX_TTFT_MS, MAX_TTFT_TARGETS * ttft_ms))
        config = EngineConfig(**fields)
        if config.latency_profile is not None:
            read_profile(Path(config.latency_profile))
    except ValueError as error:
        raise OptionsError(str(error)) from None
    return config


def _tightest_ttft_ms(options: Mapping[str, Any]) -> float:
    """Of the server's targets and of its API keys'; infinite without one. Raises ValueError."""
    keys = (parse_key_targets(text)[1].ttft_ms for text in options.get("api_key_targets", ()))
    return min((target for target in (options.get("ttft_target_ms"), *keys) if target is not None), default=math.inf)


def gateway_config(
    options: Mapping[str, Any],
    model_name: str,
    environment_keys: tuple[str, ...],
    environment_secrets: tuple[str, ...] = (),
) -> GatewayConfig:
    """Raises OptionsError."""
    fields = given_fields(options, GatewayConfig)
    fields["api_keys"] = tuple(fields.get("api_keys") or environment_keys)
    fields["typing_webhook_secrets"] = tuple(fields.get("typing_webhook_secrets") or environment_secrets)
    for name in ("allowed_hosts", "allowed_origins"):
        fields[name] = split_names(fields.get(name, ()))
    for name in ("webhook_urls", "api_key_targets"):
        fields[name] = tuple(fields.get(name, ()))
    fields["webhook_secrets"] = _webhook_secrets(options.get("webhook_secret_file"))
    fields["served_model_names"] = tuple(fields.get("served_model_names") or (model_name,))
    try:
        return GatewayConfig(**fields)
    except ValueError as error:
        raise OptionsError(str(error)) from None


def split_names(values: Iterable[str]) -> tuple[str, ...]:
    """Each value may hold several, separated by commas or as the JSON list that vLLM takes."""
    separated = (re.split(r"[,\s]+", re.sub(r'^\[|\]$|"', "", value.strip())) for value in values)
    return tuple(name for part in separated for name in part if name)


def _webhook_secrets(file: str | None) -> tuple[str, ...]:
    """Raises OptionsError."""
    if file is None:
        return ()
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise OptionsError(f"--webhook-secret-file cannot be read: {said(error)}") from None
    secrets = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not secrets:
        raise OptionsError(f"--webhook-secret-file: {file} holds no secret")
    return secrets


def given_fields(options: Mapping[str, Any], config: type[msgspec.Struct]) -> dict[str, Any]:
    """What of a configuration was set."""
    return {s.field: options[s.destination] for s in settings(config) if s.flag and s.destination in options}
