"""A pytest plugin for vLLM's own tests, unmodified: what they take for vLLM is `hocket serve` with the demo model.

Runs in vLLM's environment; HOCKET_PYTHON names an interpreter with this package. The model has no end of sequence,
so that texts reach their limit as those of the large models do that the tests were written for; it is served by the
name that a test asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

import pytest  # noqa: E402

from fakes.served import _wait_until_ready  # noqa: E402

_TAKEN = {"--root-path": 1, "--reasoning-parser": 1, "--api-key": 1, "--enable-tokenizer-info-endpoint": 0}


class RemoteOpenAIServer:
    """As much of its namesake in vLLM's tests as those use."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model: str, vllm_serve_args: list[str], **_: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        log = folder / "server.log"
        names = [model, *(arg.partition("=")[0] for arg in _values(vllm_serve_args, "--lora-modules"))]
        names += _values(vllm_serve_args, "--served-model-name")
        flags = [part for flag, num in _TAKEN.items() for part in _taken(vllm_serve_args, flag, num)]
        command = [
            os.environ["HOCKET_PYTHON"],
            "-m",
            "gateway.cli.main",
            "serve",
            str(_endless_model(folder / "model")),
        ]
        command += ["--port", "0", "--data-dir", str(folder / "data"), "--served-model-name", *names, *flags]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stderr=file, cwd=ROOT, env=variables)
        self.url_root = _wait_until_ready(self._process, log)
        self.host, _, port = self.url_root.removeprefix("http://").partition(":")
        self.port = int(port)

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def get_client(self, **options: Any) -> Any:
        import openai

        return openai.OpenAI(**self._options(self.url_for("v1"), options))

    def get_async_client(self, **options: Any) -> Any:
        import openai

        return openai.AsyncOpenAI(**self._options(self.url_for("v1"), options))

    def get_client_anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.Anthropic(**self._options(self.url_root, options))

    def get_async_client_anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(**self._options(self.url_root, options))

    def _options(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": url, "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 120} | options


def _values(arguments: list[str], flag: str) -> list[str]:
    """Up to the next flag."""
    if flag not in arguments:
        return []
    values = []
    for argument in arguments[arguments.index(flag) + 1 :]:
        if argument.startswith("--"):
            break
        values.append(argument)
    return values


def _taken(arguments: list[str], flag: str, num_values: int) -> list[str]:
    return [flag, *_values(arguments, flag)[:num_values]] if flag in arguments else []


def _endless_model(folder: Path) -> Path:
    """The demo model, whose replies have no end: a token ends them that it never says."""
    folder.mkdir()
    demo = ROOT / "worker/demo_model"
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(demo / name)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((demo / name).read_text())
        if "eos_token_id" in content:
            content["eos_token_id"] = 0
        if "chat_template" in content:
            end = content.pop("eos_token")
            content["chat_template"] = content["chat_template"].replace("eos_token", repr(end))
        (folder / name).write_text(json.dumps(content))
    return folder


def _mark(name: str) -> Any:
    """Other names are of marks that ask for devices, and of what one kind of them needs."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.isupper():
        return [] if name.endswith("ARGS") else {}
    return lambda *_, **__: lambda test: test


def pytest_configure(config: pytest.Config) -> None:
    stand_in: Any = types.ModuleType("tests.utils")
    stand_in.RemoteOpenAIServer = RemoteOpenAIServer
    stand_in.__getattr__ = _mark
    sys.modules["tests.utils"] = stand_in


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Adapters are names of the same model here."""
    import huggingface_hub

    huggingface_hub.snapshot_download = lambda *_, **__: "none"
