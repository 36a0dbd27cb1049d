"""A checkpoint with rounded weights: GPTQ, AWQ or compressed-tensors, read one module at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from torch import Tensor

from worker.base.errors import CheckpointError
from worker.models.quantized import unpack
from worker.models.quantized.quantization_config import AWQ, COMPRESSED_TENSORS, GPTQ, CheckpointQuantization
from worker.models.tensor_check import check_tensors
from worker.models.tensor_files import TensorFiles
from worker.ops.weights.rounded_weight import GroupedWeight

Shape = tuple[int, ...]
WEIGHT = ".weight"

# Of a module, beside `weight`; the first is there wherever the module is rounded.
_PARTS = {
    GPTQ: ("qweight", "qzeros", "scales", "g_idx"),
    AWQ: ("qweight", "qzeros", "scales"),
    COMPRESSED_TENSORS: ("weight_scale", "weight_packed", "weight_zero_point", "weight_shape", "weight_g_idx"),
}
# Of activations and of the cache, which are rounded here as their values want it, or not at all.
_NOT_NEEDED = re.compile(r"\.(input|output)_(scale|zero_point|global_scale)$|\.[qkv]_(scale|zero_point)$")


class QuantizedTensors:
    """A TensorSource (loader.py) of unpacked weights, which also gives their integers. Use as a context manager."""

    def __init__(self, folder: Path, quantization: CheckpointQuantization, expected: Mapping[str, Shape]) -> None:
        """expected: names and shapes of the model's tensors when unpacked. Raises CheckpointError."""
        self.method = quantization.method
        self._folder, self._quantization, self._expected = folder, quantization, expected
        self._parts = _PARTS[quantization.method]
        self._files = TensorFiles(folder)

    def __enter__(self) -> QuantizedTensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._files.__exit__(kind, error, at)

    def check(self, expected: Mapping[str, Shape], is_ignorable: Callable[[str], bool]) -> None:
        """Raises CheckpointError naming what is missing, unexpected or of another shape than expected."""
        rounded = [name.removesuffix(WEIGHT) for name in expected if self._is_rounded(name.removesuffix(WEIGHT))]
        parts = {f"{module}.{part}" for module in rounded for part in self._parts}
        found = {name: shape for name, shape in self._files.shapes([*expected, *parts]).items() if name not in parts}
        found |= {f"{module}{WEIGHT}": expected[f"{module}{WEIGHT}"] for module in rounded}
        empty = {f"{module}.bias" for module in rounded} - expected.keys()
        check_tensors(
            self._folder,
            found,
            expected,
            lambda name: (
                bool(_NOT_NEEDED.search(name)) or (name in empty and self._is_zero(name)) or is_ignorable(name)
            ),
        )

    def shape(self, name: str) -> Shape:
        return self._expected[name]

    def read(self, name: str) -> Tensor:
        weight = self.integers(name.removesuffix(WEIGHT)) if name.endswith(WEIGHT) else None
        return self._files.read(name) if weight is None else weight.dequantized()

    def integers(self, module: str) -> GroupedWeight | None:
        """None for a module that is not rounded. Raises CheckpointError."""
        if not self._is_rounded(module):
            return None
        parts = dict(self._stored(module))
        num_rows, in_features = self._expected[f"{module}{WEIGHT}"]
        sizes = self._quantization.group_sizes
        try:
            if self.method == GPTQ:
                return unpack.gptq(parts, num_rows, in_features, sizes, self._quantization.zero_offset)
            if self.method == AWQ:
                return unpack.awq(parts, num_rows, in_features, sizes)
            return unpack.compressed_tensors(parts, num_rows, in_features, sizes)
        except unpack.PackingError as error:
            raise CheckpointError(f"{module}: {error}") from None

    def _is_rounded(self, module: str) -> bool:
        shape = self._expected.get(f"{module}{WEIGHT}", ())
        return len(shape) == 2 and f"{module}.{self._parts[0]}" in self._files

    def _stored(self, module: str) -> Iterator[tuple[str, Tensor]]:
        for part in (*self._parts, WEIGHT[1:]):
            if f"{module}.{part}" in self._files:
                yield part, self._files.read(f"{module}.{part}")

    def _is_zero(self, name: str) -> bool:
        """Packers have written biases for models that have none."""
        return not bool(self._files.read(name).any())
