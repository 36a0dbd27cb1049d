"""A GGUF file as a model's directory: what the others read of one in small files, made once, and the way to the file.

It lies in the user's cache (XDG_CACHE_HOME/hocket/gguf) under the file's path, size and time, so that the next start
finds it, and a file that has changed is read anew. Weights are not copied: `model.gguf` is a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from schedcore.gguf.gguf_config import config_json
from schedcore.gguf.gguf_file import GgufError, GgufFile
from schedcore.gguf.gguf_tokenizer import tokenizer_config_json, tokenizer_json

LINK = "model.gguf"
_FORM = 1  # of what is made; another one makes it anew


def gguf_folder(path: Path) -> Path:
    """Raises GgufError."""
    path = path.resolve()
    facts = path.stat()
    key = f"{_FORM}\0{path}\0{facts.st_size}\0{facts.st_mtime_ns}"
    folder = _cache() / f"{path.stem}-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:16]}"
    if not (folder / "config.json").is_file():
        _make(path, folder)
    return folder


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hocket" / "gguf"


def _make(path: Path, folder: Path) -> None:
    file = GgufFile(path)
    settings = file.settings()
    try:
        contents = {
            "config.json": config_json(file, settings),
            "tokenizer.json": tokenizer_json(settings),
            "tokenizer_config.json": tokenizer_config_json(settings),
        }
    except GgufError as error:
        raise GgufError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        try:
            for name, content in contents.items():
                (made / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            (made / LINK).symlink_to(path)
            made.chmod(0o755)
            made.replace(folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        if not (folder / "config.json").is_file():  # else another start was faster
            raise GgufError(f"{folder.parent} cannot be written (set XDG_CACHE_HOME): {error}") from None
