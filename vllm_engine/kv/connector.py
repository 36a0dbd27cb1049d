"""The memory tiers as vLLM wants them: a KVConnectorBase_V1, one in its scheduler and one in each of its workers.

In a stock vLLM: --kv-transfer-config '{"kv_connector": "HocketConnector", "kv_role": "kv_both",
"kv_connector_module_path": "vllm_engine.kv.connector", "kv_load_failure_policy": "recompute",
"kv_connector_extra_config": {"host_bytes": 8589934592, "disk_dir": "/var/cache/hocket"}}'

One group of caches: vLLM keeps the windows of a hybrid model as whole caches for a connector that knows no more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from schedcore.tiers.cache_fingerprint import cache_fingerprint
from schedcore.tiers.disk_tier import DiskTier
from vllm_engine.before_release import tell_before_release
from vllm_engine.kv.device_blocks import DeviceBlocks
from vllm_engine.kv.host_memory import HostMemory
from vllm_engine.kv.restore_costs import RestoreCosts
from vllm_engine.kv.step_moves import StepMoves, TierReport
from vllm_engine.kv.tier_planner import TierPlanner
from vllm_engine.kv.tier_worker import TierWorker

DISK_BYTES = 16 << 30  # unless disk_bytes says


class HocketConnector(KVConnectorBase_V1):
    """Which side it is, its role says: the other side's methods are not called."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Raises ValueError if the host's memory does not hold a block."""
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._num_workers = int(vllm_config.parallel_config.world_size)
        self._num_slots = self._count_slots()
        self.planner: TierPlanner | None = None
        self._worker: TierWorker | None = None
        self._blocks: Any = None
        if role == KVConnectorRole.SCHEDULER:
            self.planner = TierPlanner(
                fingerprint_of(vllm_config, kv_cache_config),
                int(vllm_config.cache_config.block_size),
                self._num_slots,
                self._disk_bytes,
                RestoreCosts(self._block_bytes),
                self._num_workers,
            )

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what is not saved is computed again

    # ---- vLLM's scheduler ----

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._blocks = lambda request_id: kv_cache_manager.get_block_ids(request_id)[0]
        tell_before_release(kv_cache_manager, self._note_release)

    def on_new_request(self, request: Any) -> None:
        self._scheduler_side.add(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler_side.num_loadable(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler_side.begin_load(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMoves:
        return self._scheduler_side.plan(scheduler_output, self._blocks)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, TierReport):
            self._scheduler_side.take(report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler_side.release(request, self._blocks)
        self._scheduler_side.end(request.request_id)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self._scheduler_side.has_work()

    def _note_release(self, request: Any) -> None:
        self._scheduler_side.release(request, self._blocks)

    @property
    def _scheduler_side(self) -> TierPlanner:
        assert self.planner is not None
        return self.planner

    # ---- vLLM's workers ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Raises ValueError for a layout that is not blocks, or a disk's folder that cannot be used."""
        device = DeviceBlocks(kv_caches, self._kv_cache_config.num_blocks)
        if device.block_bytes != self._block_bytes:
            raise ValueError(f"a block has {device.block_bytes} bytes here, {self._block_bytes} by its configuration")
        self._worker = TierWorker(HostMemory(device, self._num_slots), self._open_disk())

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """vLLM calls it in every step, before anything is written to the cache."""
        if self._worker is not None:
            self._worker.begin(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        moves = self._get_connector_metadata()
        if self._worker is not None and moves.loads:
            self._worker.load(moves)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # all are there, or ordered before what reads them

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass  # the next step saves

    def wait_for_save(self) -> None:
        pass

    def build_connector_worker_meta(self) -> TierReport | None:
        return None if self._worker is None else self._worker.take_report()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    # ---- both ----

    @property
    def _block_bytes(self) -> int:
        """Of one worker."""
        config = self._kv_cache_config
        return int(sum(tensor.size for tensor in config.kv_cache_tensors) // config.num_blocks)

    def _count_slots(self) -> int:
        num_slots = int(self._settings["host_bytes"]) // (self._block_bytes * self._num_workers)
        if num_slots < 1:
            least = self._block_bytes * self._num_workers
            raise ValueError(f"host_cache_bytes {self._settings['host_bytes']} is less than a block: {least}")
        return num_slots

    @property
    def _disk_bytes(self) -> int:
        """Of all workers."""
        return int(self._settings.get("disk_bytes", DISK_BYTES)) if self._settings.get("disk_dir") else 0

    def _open_disk(self) -> DiskTier | None:
        if self._disk_bytes == 0:
            return None
        folder = Path(self._settings["disk_dir"])
        if self._num_workers > 1:  # each has its part of every block
            folder /= f"worker-{self._vllm_config.parallel_config.rank}"
        return DiskTier(folder, self._block_bytes, self._disk_bytes // self._num_workers)


def fingerprint_of(vllm_config: Any, kv_cache_config: Any) -> str:
    """Of all that a block depends on beside tokens, salt and adapter: the model, and how vectors are laid out here."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    layout: dict[str, object] = {
        "engine": "vllm",
        "dtype": model.dtype,
        "block_size": vllm_config.cache_config.block_size,
        "groups": kv_cache_config.kv_cache_groups,
        "device": vllm_config.device_config.device_type,
        # Kernels for CPUs pack keys as their instructions want them.
        "instructions": (torch.backends.cpu.get_cpu_capability(), torch.cpu._is_amx_tile_supported()),
        "ranks": (parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
        "quantization": model.quantization,
    }
    folder = Path(model.model)
    if not folder.is_dir():  # a name, of which the hub has one content per commit
        layout["name"] = (model.model, model.revision, getattr(model.hf_config, "_commit_hash", None))
    return cache_fingerprint(folder if folder.is_dir() else None, layout)
