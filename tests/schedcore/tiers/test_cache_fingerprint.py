"""What a cache depends on: whoever has other weights has another fingerprint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from schedcore.tiers.cache_fingerprint import cache_fingerprint


def checkpoint(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_copies_on_other_machines_are_told_apart_by_their_times_unless_they_shall_not_be(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    other = Path(shutil.copytree(one, tmp_path / "other"))
    os.utime(other / "model.safetensors", (1.0, 1.0))
    assert cache_fingerprint(one, {}) != cache_fingerprint(other, {})
    assert cache_fingerprint(one, {}, is_portable=True) == cache_fingerprint(other, {}, is_portable=True)


def test_other_weights_or_another_layout_are_another_cache(tmp_path: Path) -> None:
    one, changed = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "changed", b"Weights")
    for is_portable in (False, True):
        found = [
            cache_fingerprint(one, {"dtype": "float32"}, is_portable=is_portable),
            cache_fingerprint(one, {"dtype": "bfloat16"}, is_portable=is_portable),
            cache_fingerprint(changed, {"dtype": "float32"}, is_portable=is_portable),
            cache_fingerprint(None, {"dtype": "float32"}, is_portable=is_portable),
        ]
        assert len(set(found)) == 4
