"""schedcore._core.algorithms: the core's algorithms one by one (cpp/core/<name>.h has the contracts).

`from schedcore._core import algorithms`. Arrays are one-dimensional; a wrong shape raises ValueError.
"""

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]

# cpp/core/knapsack.h

PAST_TARGET: int
MUST_SCHEDULE: int
RESIDENT_KV: int
RESIDENT_HIDDEN: int

class Knapsack:
    def __init__(self, *, hidden_seconds_per_unit: float = 0.0, past_target_decay: float = 0.0) -> None: ...
    def solve(
        self,
        pending_seconds: Float32,
        kv_units: Int32,
        hidden_units: Int32,
        flags: UInt8,
        keep_seconds: Float32,
        capacity: int,
    ) -> tuple[UInt8, float, int]:
        """Choices (0 skip, 1 hidden, 2 KV), their value in seconds, the units they take."""

def knapsack_hidden_units(kv_units: int, hidden_ratio: float, block_units: int) -> int: ...
