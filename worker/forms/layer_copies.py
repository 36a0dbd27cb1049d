"""K and V of uncached tokens that come from the host while a step runs, one layer after the other.

They land in lanes at the end of the pool, seen as units of one layer: layer i in lane i % NUM_LANES, its blocks in the
order of the plan's copy slots, K before V. A lane is written again once the layer that had it has attended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from worker import ops
from worker.batch.paged_pool import NUM_LANES, NUM_VECTOR_KINDS, CopyEngine, PagedPool
from worker.batch.staging import to_device
from worker.tiers.host_tier import HostTier

Int64 = npt.NDArray[np.int64]


class LayerCopies:
    """Those of one step. wait() and release() are called for every layer in turn, by who computes."""

    def __init__(self, plan: BatchPlan, pool: PagedPool, num_layers: int) -> None:
        """Begins with the first layers. REQUIRES: the plan has copy slots, the pool an engine and lanes for them."""
        assert pool.arrivals.copy_engine is not None
        self._engine = pool.arrivals.copy_engine
        first = np.repeat(plan.recomputed_layers, num_loaded_blocks(plan, pool.block_size, num_layers))
        if len(first) > pool.num_lane_blocks:
            raise RuntimeError(f"{len(first)} blocks are to be loaded, a lane holds {pool.num_lane_blocks}")
        layers = range(int(first.min()), num_layers)
        chosen = [np.flatnonzero(first <= layer) for layer in layers]
        indices = [_indices(i, plan.copy_slots[places], places, pool, self._engine.units_per_block)
                   for i, places in zip(layers, chosen, strict=True)]  # fmt: skip
        packed = to_device(np.concatenate([index.ravel() for index in indices]).astype(np.int32), pool.data.device)
        parts = packed.split_with_sizes([index.shape[1] for index in indices for _ in range(2)])
        self._units = dict(zip(layers, zip(parts[::2], parts[1::2], strict=True), strict=True))
        self._waits: dict[int, Callable[[], None]] = {}
        for layer in layers[:NUM_LANES]:
            self._begin(layer)

    def wait(self, layer: int) -> None:
        """Until K and V of the layer are there."""
        if layer in self._waits:
            self._waits.pop(layer)()

    def release(self, layer: int) -> None:
        """The layer has attended."""
        if layer in self._units and layer + NUM_LANES in self._units:
            self._begin(layer + NUM_LANES)

    def _begin(self, layer: int) -> None:
        self._waits[layer] = self._engine.begin(*self._units[layer])


class CpuCopyEngine:
    """A thread of its own."""

    def __init__(self, pool: PagedPool, host: HostTier) -> None:
        self._lanes, self._host = one_layer_units(pool.data), one_layer_units(host.data.flatten(0, 1))
        self.units_per_block = host.units_per_block
        self._tasks: queue.SimpleQueue[tuple[Tensor, Tensor, threading.Event] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="layer copies", daemon=True)
        self._thread.start()

    def begin(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        done = threading.Event()
        self._tasks.put((to, source, done))

        def wait() -> None:
            done.wait()
            if self._error is not None:
                raise self._error

        return wait

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while (task := self._tasks.get()) is not None:
                to, source, done = task
                try:
                    ops.unit_copy(self._lanes, self._host, to, source, is_alone=True)
                except BaseException as error:
                    self._error = error
                done.set()


class CudaCopyEngine:
    """A stream of its own, which reads pinned memory."""

    def __init__(self, pool: PagedPool, host: HostTier) -> None:
        self._lanes, self._host = one_layer_units(pool.data), one_layer_units(host.data.flatten(0, 1))
        self.units_per_block = host.units_per_block
        self._stream = torch.cuda.Stream(pool.data.device)  # type: ignore[no-untyped-call]

    def begin(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        compute = torch.cuda.current_stream(self._lanes.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(compute.record_event())
            ops.unit_copy(self._lanes, self._host, to, source)
            landed = self._stream.record_event()
        return lambda: torch.cuda.current_stream(self._lanes.device).wait_event(landed)

    def close(self) -> None:
        self._stream.synchronize()


def make_copy_engine(pool: PagedPool, host: HostTier) -> CopyEngine:
    return CudaCopyEngine(pool, host) if pool.data.is_cuda else CpuCopyEngine(pool, host)


def one_layer_units(data: Tensor) -> Tensor:
    """[units, F, block_size, d_kv] -> [units * F, block_size, d_kv]."""
    return data.view(-1, *data.shape[2:])


def lane_units(layer: int | Int64, place: Int64, pool: PagedPool) -> Int64:
    """Of the K of these places in the layer's lane, among the units of one layer; V is behind it."""
    lanes_begin = (pool.data.shape[0] - pool.num_lane_units) * pool.layers_per_unit
    units: Int64 = lanes_begin + NUM_VECTOR_KINDS * (layer % NUM_LANES * pool.num_lane_blocks + place)
    return units


def num_loaded_blocks(plan: BatchPlan, block_size: int, num_layers: int) -> Int64:
    """By sequence of the plan."""
    blocks: Int64 = np.where(plan.recomputed_layers < num_layers, plan.uncached_tokens // block_size, 0)
    return blocks


def _indices(layer: int, slots: npt.NDArray[np.int32], places: Int64, pool: PagedPool, units_per_block: int) -> Int64:
    """[2, n]: to, and from."""
    group, layer_in_unit = divmod(layer, pool.layers_per_unit)
    kinds = np.arange(NUM_VECTOR_KINDS)
    to = (lane_units(layer, places, pool)[:, None] + kinds).ravel()
    units = slots.astype(np.int64)[:, None] * units_per_block + NUM_VECTOR_KINDS * group + kinds
    return np.stack((to, (units * pool.layers_per_unit + layer_in_unit).ravel()))
