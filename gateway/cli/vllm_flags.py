"""Flags of `vllm serve` that have no setting here: their scripts start this server, and are told what differs.

Three kinds: without effect (said in one line), good only with the values that ask for nothing (others are refused with
the reason), and those that are another flag here. Flags that mean the same in both are settings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DESTINATION = "vllm_flags"  # in the namespace: the flags without effect, in their order


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    why: str
    takes_value: bool = False


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """Values that ask for nothing; none: the flag itself asks for what is not there."""

    values: tuple[str, ...]
    why: str
    short: tuple[str, ...] = ()


_ONE_DEVICE = "a server uses one device: start one per device"
_DECODES = "how steps are computed is chosen here"

WITHOUT_EFFECT: dict[str, WithoutEffect] = {
    "trust-remote-code": WithoutEffect("no code of a checkpoint is run"),
    "enable-lora": WithoutEffect("--lora-modules is enough"),
    "disable-log-requests": WithoutEffect("prompts are never logged; --no-access-log ends the line per request"),
    "enable-log-requests": WithoutEffect("prompts are never logged"),
    "disable-log-stats": WithoutEffect("figures are in /metrics, not in the log"),
    "disable-frontend-multiprocessing": WithoutEffect("the engine is a process of its own"),
    "disable-custom-all-reduce": WithoutEffect(_ONE_DEVICE),
    "enable-expert-parallel": WithoutEffect(_ONE_DEVICE),
    "async-scheduling": WithoutEffect(_DECODES),
    "disable-cascade-attn": WithoutEffect(_DECODES),
    "use-v2-block-manager": WithoutEffect("there is one"),
    "enable-prompt-tokens-details": WithoutEffect("usage always has them"),
    "enable-request-id-headers": WithoutEffect("answers always have one"),
    "enable-server-load-tracking": WithoutEffect("the load is in /metrics"),
    "enable-auto-tool-choice": WithoutEffect("tools may always be called"),
    "allow-credentials": WithoutEffect("keys are headers, not cookies"),
    "swap-space": WithoutEffect("--host-cache-bytes keeps dropped cache in host memory", True),
    "attention-backend": WithoutEffect(_DECODES, True),
    "compilation-config": WithoutEffect(_DECODES, True),
    "cuda-graph-sizes": WithoutEffect("--max-cudagraph-capture-size is the largest", True),
    "max-seq-len-to-capture": WithoutEffect("decodes of any length are recorded", True),
    "num-scheduler-steps": WithoutEffect(_DECODES, True),
    "speculative-config": WithoutEffect(
        "other methods than ngram and draft_model: tokens are the same without, later", True
    ),
    "distributed-executor-backend": WithoutEffect(_ONE_DEVICE, True),
    "max-parallel-loading-workers": WithoutEffect("weights are mapped into memory", True),
    "model-impl": WithoutEffect("there is one", True),
    "guided-decoding-backend": WithoutEffect("there is one", True),
    "limit-mm-per-prompt": WithoutEffect("models here read text", True),
    "max-logprobs": WithoutEffect("up to 20", True),
    "uvicorn-log-level": WithoutEffect("there is no uvicorn; --no-access-log ends the line per request", True),
    "allowed-methods": WithoutEffect("those that the routes have", True),
    "allowed-headers": WithoutEffect("those that a page asks for", True),
    "api-server-count": WithoutEffect("there is one", True),
    "max-num-partial-prefills": WithoutEffect("the policy decides", True),
    "long-prefill-token-threshold": WithoutEffect("the policy decides", True),
}

ONLY_WITH: dict[str, OnlyWith] = {
    "tensor-parallel-size": OnlyWith(("1",), _ONE_DEVICE, ("-tp",)),
    "pipeline-parallel-size": OnlyWith(("1",), _ONE_DEVICE, ("-pp",)),
    "data-parallel-size": OnlyWith(("1",), _ONE_DEVICE, ("-dp",)),
    "cpu-offload-gb": OnlyWith(("0", "0.0"), "weights stay on the device"),
    "load-format": OnlyWith(("auto", "safetensors"), "weights are read from safetensors"),
    "tokenizer-mode": OnlyWith(("auto", "hf"), "the tokenizer is the checkpoint's tokenizer.json"),
    "config-format": OnlyWith(("auto", "hf"), "models are directories in Hugging Face format"),
    "generation-config": OnlyWith(("auto",), "sampling defaults are the checkpoint's; requests may say otherwise"),
    "task": OnlyWith(("auto", "generate", "embed", "embedding"), "models make text and embeddings here"),
    "runner": OnlyWith(("auto", "generate", "pooling"), "models make text and embeddings here"),
    "convert": OnlyWith(("auto", "none", "embed"), "models make text and embeddings here"),
    "revision": OnlyWith(("main",), "download that revision and give its directory"),
    "response-role": OnlyWith(("assistant",), "answers are the assistant's"),
    "chat-template-content-format": OnlyWith(("auto", "string"), "templates are given texts"),
    "tokenizer": OnlyWith((), "the tokenizer is the checkpoint's"),
    "hf-overrides": OnlyWith((), "change the checkpoint's config.json"),
    "override-generation-config": OnlyWith((), "change the checkpoint's generation_config.json"),
    "download-dir": OnlyWith((), "set $HF_HOME"),
}


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Not in --help: docs/vllm_flags.md lists them. A flag that is a setting meanwhile is left to it."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "dest": DESTINATION, "default": argparse.SUPPRESS}
    if "--speculative-config" not in parser._option_string_actions:
        parser.add_argument("--speculative-config", action=_Speculate, **hidden)
    for name, flag in WITHOUT_EFFECT.items():
        options: list[str] = [f"--{name}"] if flag.takes_value else [f"--{name}", f"--no-{name}"]
        if not parser._option_string_actions.keys() & set(options):
            parser.add_argument(*options, action=_Note, nargs=None if flag.takes_value else 0, **hidden)
    for name, only in ONLY_WITH.items():
        if f"--{name}" not in parser._option_string_actions:
            parser.add_argument(f"--{name}", *only.short, action=_Check, only=only, **hidden)
    parser.add_argument("--disable-uvicorn-access-log", action="store_false", help=argparse.SUPPRESS, dest="access_log")
    space: dict[str, Any] = {"help": argparse.SUPPRESS, "dest": "json_whitespace"}
    parser.add_argument("--guided-decoding-disable-any-whitespace", action="store_false", **space)
    parser.add_argument("--structured-outputs-config", type=_has_space, metavar="JSON", **space)
    parser.add_argument(
        "--kv-offloading-size", type=_gibibytes, metavar="GIB", help=argparse.SUPPRESS, dest="host_cache_bytes"
    )


def notes(options: dict[str, Any]) -> list[str]:
    """One line for each flag that was given and has no effect."""
    given = dict.fromkeys(options.get(DESTINATION, ()))
    return [f"{flag} has no effect here: {WITHOUT_EFFECT[_name(flag)].why}" for flag in given]


def _name(flag: str) -> str:
    name = flag.removeprefix("--")
    return name if name in WITHOUT_EFFECT else name.removeprefix("no-")


def _gibibytes(text: str) -> int:
    return int(float(text) * 2**30)


def _has_space(text: str) -> bool:
    """What a configuration of structured outputs says of whitespace: all that may be said here."""
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    known = {"disable_any_whitespace", "backend"}
    if not isinstance(config, dict) or config.keys() - known:
        raise argparse.ArgumentTypeError('only {"disable_any_whitespace": true} may be said here')
    return not config.get("disable_any_whitespace", False)


class _Note(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, DESTINATION, [*getattr(namespace, DESTINATION, ()), self.option_strings[0]])


class _Speculate(argparse.Action):
    """Repetitions (ngram) and small models are guessed from here, too; how many tokens, is decided every step."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            config = json.loads(str(values))
        except ValueError:
            config = None
        if not isinstance(config, dict):
            raise argparse.ArgumentError(self, f"{values!r} is no JSON object")
        method, model = config.get("method"), config.get("model")
        if method in (None, "draft_model") and isinstance(model, str) and model != "ngram":
            namespace.speculation, namespace.speculative_model = "auto", model
        elif method == "ngram" or (method is None and model == "ngram"):
            namespace.speculation = "auto"
        else:
            setattr(namespace, DESTINATION, [*getattr(namespace, DESTINATION, ()), self.option_strings[0]])


class _Check(argparse.Action):
    def __init__(self, only: OnlyWith, **options: Any) -> None:
        super().__init__(**options)
        self._only = only

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values not in self._only.values:
            raise argparse.ArgumentError(self, f"{values!r} is not possible here: {self._only.why}")
