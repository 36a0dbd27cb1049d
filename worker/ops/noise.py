"""Counter-based randomness: a number is a pure function of (seed, index), so no generator has a state.

That is what makes a seeded request reproducible whatever else is in its batch, and after preemption. The function is
the output mix of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = (1 << 64) - 1


def uniforms(seeds: UInt64Array, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per (seed, index) pair; both [n]."""
    bits = _mix(_mix(seeds) + _GOLDEN * indices.astype(np.uint64)) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def derive_seed(engine_seed: int, request_id: int) -> int:
    """The seed of a request that brought none."""
    words = np.array([engine_seed & _MASK_64, request_id & _MASK_64], dtype=np.uint64)
    mixed = _mix(words)
    return int(mixed[0] ^ _mix(mixed[1:])[0])


def as_seed(value: int) -> int:
    """Any integer of a client as 64 bits."""
    return value & _MASK_64


def _mix(x: UInt64Array) -> UInt64Array:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
