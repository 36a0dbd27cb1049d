"""A GGUF file, as llama.cpp and its relatives write them: settings by name, and tensors, many of them in blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class GgufError(ValueError):
    """One line that says what is wrong with the file, or what it needs."""


class GgufFile:
    """Its settings are read at once, its tensors where they are asked for. All from mapped memory."""

    def __init__(self, path: Path) -> None:
        """Raises GgufError."""
        try:
            import gguf  # an extra
        except ImportError:
            raise GgufError(f"{path} is a GGUF file: pip install 'hocket-server[gguf]' to read such files") from None
        self.path = path
        self._gguf = gguf
        try:
            self._reader = gguf.GGUFReader(path)
            self._tensors = {str(tensor.name): tensor for tensor in self._reader.tensors}
        except Exception as error:  # what the library raises for a damaged file is of many kinds
            raise GgufError(f"{path} cannot be read as GGUF: {_one_line(error)}") from None

    def settings(self) -> dict[str, Any]:
        """Numbers, strings, booleans and lists of them. Raises GgufError."""
        try:
            return {name: _shortest(field.contents()) for name, field in self._reader.fields.items()}
        except Exception as error:  # as above
            raise GgufError(f"{self.path} cannot be read as GGUF: {_one_line(error)}") from None

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of each tensor, the longest stride first: [out_features, in_features] of a weight."""
        return {name: tuple(map(int, reversed(tensor.shape))) for name, tensor in self._tensors.items()}

    def types(self) -> Mapping[str, str]:
        """How each tensor is stored, such as F16, Q8_0 or Q4_K."""
        return {name: tensor.tensor_type.name for name, tensor in self._tensors.items()}

    def read(self, name: str) -> NDArray[np.float32]:
        """Its values, a copy of their own. Raises GgufError for a type that cannot be read, KeyError."""
        tensor = self._tensors[name]
        try:
            values = self._gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise GgufError(f"{self.path}: {name} is stored as {tensor.tensor_type.name}, which is not read") from None
        return np.array(values, dtype=np.float32).reshape(self.shapes()[name])


def _shortest(value: Any) -> Any:
    """1e-06 and not 9.999999974752427e-07: most numbers were written in 32 bits."""
    if isinstance(value, float) and math.isfinite(value) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
