"""Shapes and strides of tensors, stated in one line and checked once per combination.

    match("q[T,n,d|s,d,1] weight[d|1]", q, weight)  ->  (T, n, d, s)

Per tensor: a name, its sizes, then its strides in elements. A symbol is bound where it first stands and must have the
same value wherever else it stands; numbers must match. The stride of a dimension of size 0 or 1 is not looked at; a
symbol that only such a stride names is 0.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

from torch import Tensor

_CONTIGUOUS = (-1,)  # no stride is negative
_TENSOR = re.compile(r"(\w+)\[([^|\]]*)\|([^\]]*)\]")


def match(spec: str, *tensors: Tensor) -> tuple[int, ...]:
    """The values of the symbols, in the order in which the spec names them. ValueError where something differs."""
    strides = [_CONTIGUOUS if t.is_contiguous() else t.stride() for t in tensors]  # the former is quicker to ask for
    return _match(spec, *[t.shape for t in tensors], *strides)


@lru_cache(maxsize=8192)
def _match(spec: str, *layouts: tuple[int, ...]) -> tuple[int, ...]:
    wanted = [(name, sizes.split(","), strides.split(",")) for name, sizes, strides in _TENSOR.findall(spec)]
    shapes, strides = layouts[: len(wanted)], layouts[len(wanted) :]
    values: dict[str, int | None] = {}  # None: named, not bound yet
    for (name, size_symbols, stride_symbols), shape, given in zip(wanted, shapes, strides, strict=True):
        stride = _contiguous_strides(shape) if given == _CONTIGUOUS else given
        if len(shape) != len(size_symbols):
            raise ValueError(f"{name} has {len(shape)} dimensions {list(shape)}, expected {spec}")
        for symbol, size in zip(size_symbols, shape, strict=True):
            _bind(values, symbol, size, f"{name} has shape {list(shape)}, expected {spec}")
        for symbol, size, step in zip(stride_symbols, shape, stride, strict=True):
            if size > 1:
                _bind(values, symbol, step, f"{name} has strides {list(stride)}, expected {spec}")
            elif not symbol.isdigit():
                values.setdefault(symbol, None)
    return tuple(value or 0 for value in values.values())


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _bind(values: dict[str, int | None], symbol: str, value: int, message: str) -> None:
    expected = int(symbol) if symbol.isdigit() else values.setdefault(symbol, value)
    if expected is None:
        values[symbol] = value
    elif expected != value:
        raise ValueError(f"{message}: {symbol} is {expected}, not {value}")
