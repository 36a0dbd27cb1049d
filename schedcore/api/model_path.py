"""A model's name to its directory: a local directory, a GGUF file, `demo`, or an id on the hub (or in its cache)."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

DEMO = "demo"
DEMO_PACKAGE = "worker"  # whose data it is: the engine brings it
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
GGUF_SUFFIX = ".gguf"
WEIGHT_FILES = "*.safetensors"
HUB_FILES = ["*.json", WEIGHT_FILES, "*.jinja", "tokenizer.model", "*.txt"]


class ModelNotFoundError(Exception):
    """The message says what was looked for and where."""


def resolve_model(name: str, has_weights: bool = True) -> Path:
    """The checkpoint's directory, downloaded first if `name` is a hub id that is not in the local cache.

    has_weights: they are needed, and not only the tokenizer and the texts beside it. Raises ModelNotFoundError.
    """
    if name == DEMO:
        return _checkpoint_folder(Path(str(resources.files(DEMO_PACKAGE) / "demo_model")))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checkpoint_folder(folder)
    if folder.is_file() and folder.suffix == GGUF_SUFFIX:
        return _from_gguf(folder)
    if HUB_ID.fullmatch(name):
        return _from_hub(name, [pattern for pattern in HUB_FILES if has_weights or pattern != WEIGHT_FILES])
    raise ModelNotFoundError(
        f"model {name!r} is neither a directory, nor a GGUF file, nor a hub id (organisation/name), nor {DEMO!r}"
    )


def _checkpoint_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"{folder} has no config.json; a model is a directory in Hugging Face format")
    return folder.resolve()


def _from_gguf(path: Path) -> Path:
    from schedcore.gguf.gguf_folder import gguf_folder  # what only such files need

    try:
        return gguf_folder(path)
    except ValueError as error:
        raise ModelNotFoundError(str(error)) from None


def _from_hub(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download  # takes a while to import, and most starts do not need it

    try:
        # folders inside a repository hold the same weights in other formats
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # huggingface_hub raises what its transport raises
        raise ModelNotFoundError(
            f"{name!r} is no local directory and could not be fetched from the hub ({type(error).__name__}: {error}); "
            "download the model where there is a network and give its directory"
        ) from error


def model_fingerprint(folder: Path) -> str:
    """Equal where gateway and engine may work together: one configuration, one tokenizer. The weights are not read."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("config.json", "tokenizer.json"):
        path = folder / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
