"""A pytest plugin for vLLM's own tests, unmodified: what they take for vLLM is `hocket serve` with the demo model.

Runs in vLLM's environment; HOCKET_PYTHON names an interpreter with this package, HF_HOME an empty folder. The model is
served by the name that a test asks for, and is what the tests find under that name in the cache of Hugging Face's hub.
It takes prompts as long as the tests', and mostly has no end of sequence, so that texts reach their limit as those of
the large models do that the tests were written for: see ENDING.
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

_TAKEN = {
    "--root-path": 1,
    "--reasoning-parser": 1,
    "--api-key": 1,
    "--enable-tokenizer-info-endpoint": 0,
    "--enable-force-include-usage": 0,
    "--return-tokens-as-token-ids": 0,
}
# Files whose tests wait for an answer to end by itself.
ENDING = (
    *("test_root_path.py", "test_chat_echo.py", "anthropic/test_messages.py"),
    *(f"responses/test_{name}.py" for name in ("basic", "function_call", "simple", "stateful", "structured_output")),
)
# Tokens, whatever is asked for: the demo model's are shorter than those that the tests were written for, and what has
# no end should not take minutes.
MIN_CONTEXT, MAX_CONTEXT = 4096, 12288
_HUB = Path(os.environ["HF_HOME"]) / "hub"


class RemoteOpenAIServer:
    """As much of its namesake in vLLM's tests as those use."""

    DUMMY_API_KEY = "token-abc123"
    is_ending = False  # the model of those that follow ends its answers

    def __init__(
        self, model: str, vllm_serve_args: list[str], *, env_dict: dict[str, str] | None = None, **_: Any
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        log = folder / "server.log"
        checkpoint = _HUB.parent / ("ending" if self.is_ending else "endless")
        _put_into_hub(model, checkpoint)
        names = [model, *(arg.partition("=")[0] for arg in _values(vllm_serve_args, "--lora-modules"))]
        names += _values(vllm_serve_args, "--served-model-name")
        flags = [part for flag, num in _TAKEN.items() for part in _taken(vllm_serve_args, flag, num)]
        command = [
            os.environ["HOCKET_PYTHON"],
            "-m",
            "gateway.cli.main",
            "serve",
            str(checkpoint),
        ]
        command += ["--port", "0", "--data-dir", str(folder / "data"), "--served-model-name", *names, *flags]
        asked = [int(value) for value in _taken(vllm_serve_args, "--max-model-len", 1)[1:]]
        command += ["--max-model-len", str(min(max([MIN_CONTEXT, *asked]), MAX_CONTEXT))]
        if "VLLM_API_KEY" in (env_dict or {}):
            command += ["--api-key", env_dict["VLLM_API_KEY"]]
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
    """The last counts."""
    if flag not in arguments:
        return []
    last = len(arguments) - 1 - arguments[::-1].index(flag)
    return [flag, *_values(arguments[last:], flag)[:num_values]]


def _model(folder: Path, *, is_ending: bool) -> None:
    """The demo model, with longer positions. Where it is not ending, a token ends its replies that it never says."""
    folder.mkdir(parents=True)
    demo = ROOT / "worker/demo_model"
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(demo / name)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((demo / name).read_text())
        if "max_position_embeddings" in content:
            content["max_position_embeddings"] = MAX_CONTEXT
        if "model_max_length" in content:
            content["model_max_length"] = MAX_CONTEXT
        if "eos_token_id" in content and not is_ending:
            content["eos_token_id"] = 0
        if "chat_template" in content and not is_ending:
            end = content.pop("eos_token")
            content["chat_template"] = content["chat_template"].replace("eos_token", repr(end))
        (folder / name).write_text(json.dumps(content))


def _put_into_hub(name: str, folder: Path) -> None:
    """Where vLLM's and Transformers' functions look for a model of that name: its tokenizer is the server's."""
    revision = "0" * 40
    entry = _entry(name)
    (entry / "refs").mkdir(parents=True, exist_ok=True)
    (entry / "snapshots").mkdir(exist_ok=True)
    (entry / "refs/main").write_text(revision)
    (entry / "snapshots" / revision).unlink(missing_ok=True)
    (entry / "snapshots" / revision).symlink_to(folder)


def _entry(name: str) -> Path:
    return _HUB / f"models--{name.replace('/', '--')}"


def _mark(name: str) -> Any:
    """Other names are of marks that ask for devices, and of what one kind of them needs."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.isupper():
        return [] if name.endswith("ARGS") else {}
    return lambda *_, **__: lambda test: test


def _stand_in_for_utils() -> None:
    stand_in: Any = types.ModuleType("tests.utils")
    stand_in.RemoteOpenAIServer = RemoteOpenAIServer
    stand_in.__getattr__ = _mark
    sys.modules["tests.utils"] = stand_in


def _stand_in_for_adapters() -> None:
    """What the tests would download is a name of the same model here."""
    import huggingface_hub

    download = huggingface_hub.HfApi.snapshot_download

    def snapshot_download(self: Any, repo_id: str, *arguments: Any, **options: Any) -> str:
        return download(self, repo_id, *arguments, **options) if _entry(repo_id).exists() else "none"

    huggingface_hub.HfApi.snapshot_download = snapshot_download


_stand_in_for_utils()  # before other plugins import it


def pytest_configure(config: pytest.Config) -> None:
    for name in ("ending", "endless"):  # kept to the end: Transformers remembers where a name's files were
        _model(_HUB.parent / name, is_ending=name == "ending")
    _stand_in_for_adapters()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    RemoteOpenAIServer.is_ending = str(item.path).endswith(ENDING)
