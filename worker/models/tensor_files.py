"""A checkpoint's tensors on disk: safetensors, in one file or sharded, read one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from worker.base.errors import CheckpointError
from worker.models.tensor_check import check_tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class TensorFiles:
    """Use as a context manager: tensors it returns are views into mapped files, valid while it is open."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError if there are no safetensors files, or one is missing or damaged."""
        self._folder = folder
        self._open_files = ExitStack()
        self._file_of: dict[str, Any] = {}
        try:
            for file in _weight_files(folder):
                handle = self._open_files.enter_context(_open(folder / file))
                self._file_of.update(dict.fromkeys(handle.keys(), handle))
        except BaseException:
            self._open_files.close()
            raise

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open_files.close()

    def shape(self, name: str) -> tuple[int, ...]:
        name = self._stored_name(name)
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        name = self._stored_name(name)
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def check(self, expected: Mapping[str, tuple[int, ...]], is_ignorable: Callable[[str], bool]) -> None:
        """Raises CheckpointError naming what is missing, unexpected or of another shape than expected."""
        check_tensors(self._folder, self.shapes(expected), expected, is_ignorable)

    def shapes(self, known: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Of all that is stored, by the known names where one is meant."""
        hub_names = {self._stored_name(name): name for name in known}
        return {hub_names.get(name, name): self.shape(name) for name in self._file_of}

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) in self._file_of

    def _stored_name(self, name: str) -> str:
        """Checkpoints saved from the bare model, without its head, lack the prefix `model.`."""
        bare = name.removeprefix("model.")
        return bare if name not in self._file_of and bare in self._file_of else name


def _weight_files(folder: Path) -> list[str]:
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE]
    if (folder / INDEX_FILE).is_file():
        return _indexed_files(folder / INDEX_FILE)
    hint = ""
    if any(folder.glob("pytorch_model*.bin")):
        hint = "; pytorch_model.bin is not read (it can run code): convert the checkpoint to safetensors"
    raise CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{hint}")


def _indexed_files(index: Path) -> list[str]:
    """By name, all in the index's own folder."""
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is damaged: {_one_line(error)}") from None
    wrong = [file for file in files if not isinstance(file, str) or Path(file).name != file or "\0" in file]
    if wrong:
        raise CheckpointError(f"{index} is damaged: {str(wrong[0])[:60]!r} is no name of a file beside it")
    return sorted(files)


def _open(path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is not a file")
    try:
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, though {INDEX_FILE} names it") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
