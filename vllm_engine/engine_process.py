"""The composition root of the engine process: builds everything once, serves until told to stop."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from schedcore.api.config import VLLM_POLICY, EngineConfig
from schedcore.api.types import (
    ADVISORIES,
    ALLOWED_TOKENS,
    BAD_WORDS,
    CACHE_RESET,
    LOGPROB_TOKENS,
    POOLING,
    RESUMPTION,
    EngineInfo,
)
from schedcore.serving.engine_main import IsOrphaned
from schedcore.serving.engine_server import EngineServer
from schedcore.serving.gateway_link import GatewayLink
from vllm_engine.compat import IncompatibleVllmError, vllm_version
from vllm_engine.make_core import make_core
from vllm_engine.settings import advisor_settings

logger = logging.getLogger("vllm_engine")

WITHOUT = (ALLOWED_TOKENS, BAD_WORDS, LOGPROB_TOKENS, CACHE_RESET, POOLING)


def serve(config: EngineConfig, link: GatewayLink, started: float, is_orphaned: IsOrphaned) -> int:
    """Exit status: 0 stopped, 1 failed. started: time.monotonic() of the process's start."""
    try:
        engine, info = build_engine(config, started)
    except Exception as error:
        is_expected = isinstance(error, IncompatibleVllmError | ValueError | ImportError)
        logger.error("the engine cannot start: %s", error, exc_info=not is_expected)
        link.say_farewell(f"the vLLM engine cannot start: {error}")
        return 1
    server = EngineServer(engine, link, info, time.monotonic, is_orphaned=is_orphaned)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # vLLM may have taken it
    signal.set_wakeup_fd(link.wakeup_fileno, warn_on_full_buffer=False)
    logger.info("ready: %s", msgspec.json.encode(info).decode())
    try:
        server.run()
    except Exception:
        logger.exception("the engine failed")
        return 1
    finally:
        signal.set_wakeup_fd(-1)
        engine.close()
    return 0


def build_engine(config: EngineConfig, started: float) -> tuple[Any, EngineInfo]:
    """Raises IncompatibleVllmError, ValueError for a wrong setting, and what vLLM raises for a model."""
    version = vllm_version()
    core = make_core(config)
    from vllm_engine.engine import UNITS_PER_BLOCK, VllmEngine
    from vllm_engine.first_estimate import beliefs_of
    from vllm_engine.grammars import install_grammars
    from vllm_engine.images.growing_prompts import GrowingPrompts
    from vllm_engine.images.image_prompts import open_image_prompts
    from vllm_engine.make_advisor import make_advisor
    from vllm_engine.requests import lora_requests
    from vllm_engine.runner.resumption import install_resumption
    from vllm_engine.sessions.open_sessions import open_sessions
    from vllm_engine.steering import Steering

    vllm_config = core.vllm_config
    scheduling = vllm_config.scheduler_config
    has_grammars = install_grammars(core)
    can_resume = install_resumption(core)
    planner = core.scheduler.planner
    steering = None
    if planner is not None:
        planner.is_paused = True  # what an earlier life kept would make the first steps look short
    if config.policy != VLLM_POLICY:
        profile = None if config.latency_profile is None else Path(config.latency_profile)
        beliefs = beliefs_of(core, scheduling.max_num_batched_tokens, profile)
        record = None if config.decision_record is None else Path(config.decision_record)
        advisor = make_advisor(core.scheduler, advisor_settings(config), beliefs.estimates(), record)
        steering = Steering(advisor, time.monotonic, core.scheduler.is_exact)
        core.scheduler.steer(steering)
        if planner is not None and config.restore == "faster":
            planner.costs.latency = beliefs.latency_model()
    core.scheduler.reset_prefix_cache()
    if planner is not None:
        planner.is_paused = False
    adapters = lora_requests(config.adapters())
    for adapter in adapters.values():
        core.add_lora(adapter)  # one that does not fit the model fails here, and not a request
    sessions = open_sessions(core, config, time.monotonic)
    image_prompts = open_image_prompts(core)
    growing = None if image_prompts is None else GrowingPrompts(image_prompts, time.monotonic)
    engine = VllmEngine(core, steering, config.max_num_waiting, time.monotonic, adapters, sessions, growing)
    model = vllm_config.model_config
    info = EngineInfo(
        model=config.served_model_name or model.model,
        dtype=str(model.dtype).removeprefix("torch."),
        device=f"{vllm_config.device_config.device_type}, vLLM {version}",
        vocab_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        block_size=core.scheduler.block_size,
        num_units=UNITS_PER_BLOCK * core.scheduler.num_blocks,
        units_per_block=UNITS_PER_BLOCK,
        max_num_seqs=scheduling.max_num_seqs,
        max_num_batched_tokens=scheduling.max_num_batched_tokens,
        policy=config.policy,
        startup_seconds=time.monotonic() - started,
        max_ttft_ms=None if steering is None else config.max_ttft_ms or None,
        host_cache_bytes=0 if planner is None else planner.num_slots * planner.costs.block_bytes,
        has_grammars=has_grammars,
        images=None if growing is None else growing.limits,
        missing=[*WITHOUT, *([ADVISORIES] if sessions is None else []), *([] if can_resume else [RESUMPTION])],
    )
    return engine, info
