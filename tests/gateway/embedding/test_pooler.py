"""How a checkpoint's files, and the flag, say that vectors are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.embedding.pooler import Pooler
from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import Pooling, PoolingKind

TYPES = {name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize", "Dense")}


def write(folder: Path, *modules: str, pooling: dict[str, Any] | None = None, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"hidden_size": 64} | config))
    listed = [{"idx": i, "path": f"{i}_{name}", "type": TYPES[name]} for i, name in enumerate(modules)]
    if modules:
        (folder / "modules.json").write_text(json.dumps(listed))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def asked(pooler: Pooler, dimensions: int | None = None, is_normalized: bool | None = None) -> Pooling:
    return pooler.pooling(dimensions, is_normalized)


@pytest.mark.parametrize(
    ("modes", "kind"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, PoolingKind.LAST),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, PoolingKind.MEAN),
        ({"pooling_mode_cls_token": True, "word_embedding_dimension": 64}, PoolingKind.CLS),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, PoolingKind.MEAN),
        ({"pooling_mode": "mean"}, PoolingKind.MEAN),
    ],
)
def test_poolings_of_checkpoints(tmp_path: Path, modes: dict[str, Any], kind: PoolingKind) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", "Normalize", pooling=modes)
    assert asked(Pooler.read(folder)) == Pooling(kind, True)
    assert asked(Pooler.read(folder, '{"pooling_type": "CLS"}')).kind is PoolingKind.CLS


def test_length_is_what_the_modules_say(tmp_path: Path) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode_mean_tokens": True})
    assert not asked(Pooler.read(folder)).is_normalized
    assert asked(Pooler.read(folder), is_normalized=True).is_normalized
    assert asked(Pooler.read(folder, '{"normalize": true}')).is_normalized
    assert asked(Pooler.read(folder, '{"seq_pooling_type": "LAST", "use_activation": true}')) == Pooling(
        PoolingKind.LAST, True
    )


def test_without_files_the_last_token(tmp_path: Path) -> None:
    assert asked(Pooler.read(write(tmp_path))) == Pooling(PoolingKind.LAST, True)


@pytest.mark.parametrize(
    ("modules", "modes", "word"),
    [
        (("Transformer", "Pooling", "Dense"), {"pooling_mode_mean_tokens": True}, "Dense"),
        (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, "max"),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "cls and mean",
        ),
        (("Transformer", "Pooling"), {}, "none"),
        (("Transformer", "Pooling"), [1], "cannot be read"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, modules: tuple[str, ...], modes: Any, word: str) -> None:
    pooler = Pooler.read(write(tmp_path, *modules, pooling=modes))
    with pytest.raises(InvalidRequestError, match=word):
        asked(pooler)


@pytest.mark.parametrize("text", ["", "[]", '{"pooling_type": "MAX"}', '{"a": 1}', '{"normalize": 3}'])
def test_bad_settings(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="pooler-config"):
        Pooler.read(write(tmp_path), text)


def test_dimensions(tmp_path: Path) -> None:
    plain = Pooler.read(write(tmp_path))
    assert asked(plain, 64).num_dimensions == 64
    with pytest.raises(InvalidRequestError, match="shorter"):
        asked(plain, 32)
    any_size = Pooler.read(write(tmp_path, is_matryoshka=True))
    assert asked(any_size, 5).num_dimensions == 5
    with pytest.raises(InvalidRequestError, match="at most 64"):
        asked(any_size, 65)
    some = Pooler.read(write(tmp_path, matryoshka_dimensions=[16, 32]))
    assert asked(some, 32).num_dimensions == 32
    with pytest.raises(InvalidRequestError, match="16, 32"):
        asked(some, 20)
