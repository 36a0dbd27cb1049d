"""The options of `hocket serve`: flags, the same names in a TOML file, and what they configure.

Flags carry the names of `vllm serve` where the meaning is the same. The command line wins over the file, the file
over the defaults, which are those of EngineConfig and GatewayConfig.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.config import GatewayConfig
from schedcore.config import CACHE_KINDS, DTYPES, POLICIES, QUANTIZATIONS, EngineConfig
from schedcore.latency_profile import read_profile

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

OFFLINE_STEP_SHARE = 0.25  # of the target for the first token

# argparse destination -> field, where they differ
_ENGINE_FIELDS = {
    "scheduling_policy": "policy",
    "kv_cache_memory_bytes": "cache_memory_bytes",
}
_GATEWAY_FIELDS = {
    "api_key": "api_keys",
    "typing_webhook_secret": "typing_webhook_secrets",
    "served_model_name": "served_model_names",
    "access_log": "enable_access_log",
    "offline": "enable_offline",
    "prefix_order": "enable_prefix_order",
    "webhook_url": "webhook_urls",
}


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
    parser.add_argument("--config", metavar="FILE", help="TOML file with options by the same names; flags win over it")
    _add_server_options(parser.add_argument_group("server"))
    _add_model_options(parser.add_argument_group("model"))
    _add_engine_options(parser.add_argument_group("engine"))
    _add_offline_options(parser.add_argument_group("offline work"))
    _add_limits(parser.add_argument_group("limits"))


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    default = GatewayConfig()
    group.add_argument(
        "--host",
        help=f"address to listen on (default: {default.host}, this machine only; 0.0.0.0 for all, then set a key)",
    )
    group.add_argument("--port", type=int, help=f"0 for any free one (default: {default.port})")
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="ask clients for a key; repeatable, keys share no cache (default: $HOCKET_API_KEY, or none)",
    )
    group.add_argument(
        "--max-engine-restarts",
        type=int,
        metavar="N",
        help=f"of an engine that dies, within ten minutes; 0: never (default: {default.max_engine_restarts})",
    )
    group.add_argument(
        "--typing-webhook-secret",
        action="append",
        metavar="SECRET",
        help="whsec_..., or KEY:whsec_... with several keys: believe /v1/webhooks/typing signed with it; repeatable "
        "(default: $HOCKET_TYPING_WEBHOOK_SECRET, or none)",
    )
    group.add_argument(
        "--access-log", action=argparse.BooleanOptionalAction, help="one JSON line per request, without prompts"
    )


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name that requests may use; repeatable (default: the model's)",
    )
    group.add_argument("--dtype", choices=DTYPES, help="of weights and cache (default: auto, the checkpoint's)")
    group.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        help="of weights, on CPU: less exact and up to twice as fast (default: off)",
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="context length in tokens")
    group.add_argument("--chat-template", metavar="FILE", help="Jinja template instead of the checkpoint's")


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    default = EngineConfig(model="")
    group.add_argument("--device", help="cpu, cuda or cuda:N (default: auto, cuda if there is one)")
    group.add_argument("--scheduling-policy", choices=POLICIES, help=f"who runs first (default: {default.policy})")
    group.add_argument(
        "--max-wait-ms",
        type=float,
        metavar="MS",
        help=f"without a token; then an online request goes first (default: {default.max_wait_ms:g})",
    )
    group.add_argument(
        "--max-offline-step-ms",
        type=float,
        metavar="MS",
        help="to which offline work may stretch a step; whoever arrives waits for its end "
        f"(default: {default.max_offline_step_ms:g}, or a quarter of --ttft-target-ms)",
    )
    group.add_argument(
        "--max-num-seqs", type=int, metavar="N", help=f"requests in one step (default: {default.max_num_seqs})"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help=f"tokens in one step; fewer: shorter gaps between tokens (default: {default.max_num_batched_tokens})",
    )
    group.add_argument(
        "--kv-cache-memory-bytes", type=size_in_bytes, metavar="SIZE", help="such as 2G (default: from free memory)"
    )
    group.add_argument(
        "--cache-kinds",
        choices=CACHE_KINDS,
        help="auto: where memory is short, requests may be kept as hidden states, half of K and V on models with as "
        "many KV heads as heads, and projected in every step; hidden: all are, under policy fcfs "
        f"(default: {default.cache_kinds})",
    )
    group.add_argument(
        "--partial-caching",
        action=argparse.BooleanOptionalAction,
        help="where memory is short and computing is not, the first tokens of requests may be recomputed in every step "
        "instead of being cached, or loaded from the host where --host-cache-bytes keeps them; needs "
        "--no-enable-prefix-caching (default: off)",
    )
    group.add_argument(
        "--host-cache-bytes",
        type=size_in_bytes,
        metavar="SIZE",
        help="host memory that keeps what was computed when the cache has dropped it, such as 8G (default: none)",
    )
    group.add_argument(
        "--disk-cache-dir",
        metavar="DIR",
        help="folder that keeps it over restarts; one engine's own, needs --host-cache-bytes (default: none)",
    )
    group.add_argument(
        "--disk-cache-bytes",
        type=size_in_bytes,
        metavar="SIZE",
        help=f"that it may take on disk (default: {default.disk_cache_bytes})",
    )
    group.add_argument("--block-size", type=int, metavar="N", help=f"tokens per block (default: {default.block_size})")
    group.add_argument(
        "--layers-per-unit",
        type=int,
        metavar="N",
        help=f"layers per unit of memory (default: {default.layers_per_unit})",
    )
    group.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, help="default: on")
    group.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, help="default: on")
    group.add_argument("--seed", type=int, metavar="N", help="of requests without one (default: 0)")
    group.add_argument("--num-threads", type=int, metavar="N", help="of CPU kernels (default: all cores)")
    group.add_argument(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        help="on CUDA: launch every kernel of every step instead of replaying recorded decode steps; a faster start, "
        "slower decodes (default: off)",
    )
    group.add_argument(
        "--max-cudagraph-capture-size",
        type=int,
        metavar="N",
        help="on CUDA: requests in the largest decode step that is recorded; larger ones are launched kernel by kernel "
        f"(default: {default.max_cudagraph_capture_size}, at most --max-num-seqs)",
    )
    group.add_argument(
        "--latency-profile",
        metavar="FILE",
        help="how long a step takes on this machine, as hocket calibrate wrote it (default: unknown)",
    )
    group.add_argument(
        "--decision-record",
        metavar="FILE",
        help="write what the scheduler is told, prompts as token ids, to a new file for hocket simulate --replay",
    )


def _add_offline_options(group: argparse._ArgumentGroup) -> None:
    default = GatewayConfig()
    group.add_argument("--offline", action=argparse.BooleanOptionalAction, help="serve files and batches (default: on)")
    group.add_argument(
        "--prefix-order", action=argparse.BooleanOptionalAction, help="rows that begin alike run together (default: on)"
    )
    group.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where files and batches are kept, one gateway per directory (default: hocket in $XDG_DATA_HOME)",
    )
    group.add_argument(
        "--database-url",
        metavar="URL",
        help="such as postgresql://user:password@host/name (default: SQLite in the data directory)",
    )
    group.add_argument(
        "--webhook-url",
        action="append",
        metavar="URL",
        help="told when a batch ends; KEY:URL: one API key's batches; repeatable",
    )
    group.add_argument(
        "--webhook-secret-file",
        metavar="FILE",
        help="whsec_..., one per line, to sign webhooks with; KEY:whsec_... with several API keys. With it, batches "
        "may name a webhook_url in their metadata, too",
    )
    group.add_argument(
        "--allow-private-webhooks",
        action=argparse.BooleanOptionalAction,
        help="batches may name private addresses (default: off)",
    )
    for name, kind, text in (
        ("max-file-bytes", size_in_bytes, "of an uploaded file"),
        ("max-batch-file-bytes", size_in_bytes, "of a batch's input file"),
        ("max-batch-rows", int, "of one batch"),
        ("max-stored-bytes", size_in_bytes, "of one API key's files"),
        ("max-pending-rows", int, "of one API key's batches that wait to be run"),
        ("look-ahead-rows", int, "of batches that the engine sees at a time; keep it below what it queues"),
        ("look-ahead-tokens", int, "of their prompts"),
        ("max-promoted-rows", int, "that run as online requests at a time, when a batch's window nears its end"),
    ):
        metavar = "SIZE" if kind is size_in_bytes else "N"
        text = f"{text} (default: {getattr(default, name.replace('-', '_'))})"
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)


def _add_limits(group: argparse._ArgumentGroup) -> None:
    default = GatewayConfig()
    for name, kind, text in (
        ("max-queue-requests", int, "waiting requests per class before others get 429"),
        ("max-queue-tokens", int, "prompt tokens of waiting requests per class before others get 429"),
        ("max-body-bytes", size_in_bytes, "of a request"),
        ("request-timeout-ms", float, "from arrival to the last token, 0 for none"),
        ("flex-timeout-ms", float, "the same for requests of service tier flex"),
        ("body-timeout-ms", float, "for a client to send its body"),
        ("drain-timeout-ms", float, "for open requests to finish after SIGTERM"),
        ("keepalive-ms", float, "of silence before a first token, then streams get a comment"),
        ("max-advisories-per-second", float, "per tenant; more get 429"),
        ("max-advisory-bytes-per-second", size_in_bytes, "of their bodies, per tenant"),
        ("max-lease-bytes", size_in_bytes, "of device memory that one tenant's advisories may hold"),
        ("max-lease-ms", float, "of an advisory"),
        ("ttft-target-ms", float, "time to first token that online requests should see"),
        ("itl-target-ms", float, "time between tokens that online requests should see"),
    ):
        value = getattr(default, name.replace("-", "_"))
        text = text if value is None else f"{text} (default: {value:.0f})"
        group.add_argument(f"--{name}", type=kind, metavar="SIZE" if kind is size_in_bytes else "N", help=text)


def read_file(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The options in a TOML file, parsed as flags are. Raises OptionsError; the parser exits on a wrong value."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionsError(f"{path} cannot be read: {error}") from None
    arguments: list[str] = []
    for key, value in content.items():
        name = key.replace("_", "-")
        if name == "config":
            raise OptionsError(f"{path}: 'config' cannot be set in a file")
        if name == "model":
            arguments.insert(0, str(value))
        elif f"--{name}" not in parser._option_string_actions:
            raise OptionsError(f"{path}: there is no option '{key}'")
        elif isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            arguments += [f"--{name}={item}" for item in value]
        else:
            arguments.append(f"--{name}={value}")
    return vars(parser.parse_args(arguments))


def engine_config(options: Mapping[str, Any], model: Path, name: str) -> EngineConfig:
    """Raises OptionsError."""
    fields = _fields(options, _ENGINE_FIELDS, EngineConfig)
    fields |= {"model": str(model), "served_model_name": name}
    if (target := options.get("ttft_target_ms")) is not None and target > 0:
        longest = min(EngineConfig(model="").max_offline_step_ms, OFFLINE_STEP_SHARE * target)
        fields.setdefault("max_offline_step_ms", longest)
    try:
        config = EngineConfig(**fields)
        if config.latency_profile is not None:
            read_profile(Path(config.latency_profile))
    except ValueError as error:
        raise OptionsError(str(error)) from None
    return config


def gateway_config(
    options: Mapping[str, Any],
    model_name: str,
    environment_keys: tuple[str, ...],
    environment_secrets: tuple[str, ...] = (),
) -> GatewayConfig:
    """Raises OptionsError."""
    fields = _fields(options, _GATEWAY_FIELDS, GatewayConfig)
    fields["api_keys"] = tuple(fields.get("api_keys") or environment_keys)
    fields["typing_webhook_secrets"] = tuple(fields.get("typing_webhook_secrets") or environment_secrets)
    fields["webhook_urls"] = tuple(fields.get("webhook_urls", ()))
    fields["webhook_secrets"] = _webhook_secrets(options.get("webhook_secret_file"))
    fields["served_model_names"] = tuple(fields.get("served_model_names") or (model_name,))
    try:
        return GatewayConfig(**fields)
    except ValueError as error:
        raise OptionsError(str(error)) from None


def _webhook_secrets(file: str | None) -> tuple[str, ...]:
    """Raises OptionsError."""
    if file is None:
        return ()
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise OptionsError(f"--webhook-secret-file: {file} cannot be read: {error}") from None
    secrets = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not secrets:
        raise OptionsError(f"--webhook-secret-file: {file} holds no secret")
    return secrets


def _fields(options: Mapping[str, Any], names: Mapping[str, str], kind: type[msgspec.Struct]) -> dict[str, Any]:
    renamed = {names.get(option, option): value for option, value in options.items()}
    return {field: value for field, value in renamed.items() if field in kind.__struct_fields__}
