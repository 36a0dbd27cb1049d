"""model.safetensors and its index: tensors of the shapes that config.json promises, or a CheckpointError."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fuzz.cursor import Cursor
from worker.base.errors import CheckpointError
from worker.models.tensor_files import TensorFiles

_FOLDER = Path(tempfile.mkdtemp(prefix="hocket-fuzz-"))
EXPECTED = {"model.a.weight": (2, 3), "model.b.weight": (4,)}


def check(data: bytes) -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir()
    cursor = Cursor(data)
    if cursor.below(2):
        index = cursor.take(cursor.below(256))
        (_FOLDER / "model.safetensors.index.json").write_bytes(index)
        (_FOLDER / "part.safetensors").write_bytes(cursor.rest())
    else:
        (_FOLDER / "model.safetensors").write_bytes(cursor.rest())
    try:
        with TensorFiles(_FOLDER) as checkpoint:
            checkpoint.check(EXPECTED, lambda name: name.endswith("inv_freq"))
            for name, shape in EXPECTED.items():
                assert checkpoint.shape(name) == shape
                assert checkpoint.read(name).shape == shape
    except CheckpointError as error:
        assert "\n" not in str(error).strip()
