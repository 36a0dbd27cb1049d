"""What announcements ask of vLLM's cache, and of the tiers below it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from schedcore.api.types import RequestClass
from schedcore.tiers.session_files import SessionName
from vllm_engine.before_release import tell_before_release
from vllm_engine.kv.tier_planner import UNCOUNTED, lora_of
from vllm_engine.sessions.free_blocks import ANYBODY, ONLINE, SESSION, FreeBlocks, install_free_blocks
from vllm_engine.sessions.session_table import Session
from vllm_engine.steering import EXTRA

FIRST = -(1 << 30)  # a priority: before other offline work
ANY_TOKEN = 0  # behind a target: what is computed of it is in no complete block


class DeviceCache:
    """Over an EngineCore of vLLM's whose scheduler is Steered."""

    def __init__(self, core: Any) -> None:
        self._core, self._scheduler = core, core.scheduler
        self.block_size = int(self._scheduler.block_size)
        self.num_blocks = int(self._scheduler.num_blocks)
        self.max_model_len = int(self._scheduler.max_model_len)
        config = self._scheduler.kv_cache_config
        self.block_bytes = int(sum(tensor.size for tensor in config.kv_cache_tensors) // config.num_blocks)
        self._last_name = 0

    def keep_in_order(self) -> FreeBlocks:
        """From now on offline work's blocks go before those of sessions."""
        manager = self._scheduler.kv_cache_manager
        free = install_free_blocks(manager.block_pool)

        def note_release(request: Any) -> None:
            level = level_of(request)
            for blocks in manager.get_blocks(request.request_id).blocks:
                free.raise_to(level, (block for block in blocks if not block.is_null))

        tell_before_release(manager, note_release)
        return free

    def probe(self, token_ids: Sequence[int], name: SessionName, lora_request: Any) -> Any:
        return self._made("probe", token_ids, name, lora_request)[0]

    def cached(self, probe: Any) -> tuple[int, list[Any]]:
        found = self._scheduler.kv_cache_manager.get_computed_blocks(probe)
        blocks = [block for group in found[0].blocks for block in group if not block.is_null]
        return int(found[1]), blocks

    def num_in_tiers(self, session: Session, target: Sequence[int], num_here: int) -> tuple[list[int], int]:
        planner = self._scheduler.planner
        if planner is None or num_here >= len(target):
            return [0, 0], 0
        keys = planner.keys_of(target, session.name.salt, lora_of(session))
        found: tuple[list[int], int] = planner.num_tokens_in(keys, num_here // self.block_size)
        return found

    def prepare(self, token_ids: Sequence[int], session: Session) -> str:
        self._last_name += 1
        name = f"{UNCOUNTED}{self._last_name}"
        self._core.add_request(*self._made(name, token_ids, session.name, session.lora_request))
        return name

    def drop(self, name: str) -> None:
        self._core.abort_requests([name])

    def is_free_for(self, num_blocks: int) -> bool:
        scheduler = self._scheduler
        has_room = scheduler.num_free_blocks >= num_blocks + len(scheduler.running)
        return bool(has_room and scheduler.num_waiting_online == 0)

    def _made(self, name: str, token_ids: Sequence[int], session: SessionName, lora_request: Any) -> Any:
        extra = {"class": int(RequestClass.OFFLINE), "priority": FIRST, "tenant": session.tenant, "session": True}
        params = SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, extra_args={EXTRA: extra}
        )
        return self._core.preprocess_add_request(
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=[*token_ids, ANY_TOKEN],
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=lora_request,
                cache_salt=session.salt or None,
                data_parallel_rank=None,
                priority=FIRST,
                external_req_id=name,
            )
        )


def level_of(request: Any) -> int:
    params = request.sampling_params
    extra = ((params.extra_args if params is not None else None) or {}).get(EXTRA, {})
    if extra.get("session"):
        return SESSION
    is_offline = int(extra.get("class", RequestClass.OFFLINE if request.priority > 0 else RequestClass.ONLINE))
    return ANYBODY if is_offline == RequestClass.OFFLINE else ONLINE
