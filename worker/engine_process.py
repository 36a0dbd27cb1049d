"""The composition root of the engine process: builds everything once, serves until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from pathlib import Path

import msgspec

from schedcore import wire
from schedcore._core import Scheduler
from schedcore.config import EngineConfig
from schedcore.decision_record import check_new
from schedcore.latency_profile import LatencyProfile, read_profile
from schedcore.model_path import ModelNotFoundError
from schedcore.recipe import Recipe
from schedcore.recording_scheduler import RecordingScheduler
from schedcore.types import EngineInfo
from worker.cache_forms import form_settings
from worker.engine import Engine, EngineLimits
from worker.engine_server import EngineServer
from worker.engine_tiers import EngineTiers, block_bytes, core_estimates, core_settings, open_tiers
from worker.errors import WorkerError
from worker.first_estimate import first_estimate
from worker.gateway_link import GatewayLink
from worker.host_memory import make_resident
from worker.loaded_runner import LoadedRunner, load_runner
from worker.step_costs import step_costs
from worker.tier_mover import TierMover

logger = logging.getLogger("worker")

# How far off the scheduler takes a coefficient of its latency model to be, relative, before it has measured steps.
CALIBRATED_DEVIATION, UNMEASURED_DEVIATION = 0.3, 2.0
FIRST_MARGIN = 2.3  # of deadlines over predicted times, until the scheduler knows how far predictions are off
FAREWELL_MS = 1000  # that a gateway may take to say Hello to an engine that could not start


def serve(config: EngineConfig, link: GatewayLink, started: float) -> int:
    """Exit status: 0 stopped, 1 failed. started: time.monotonic() of the process's start."""
    parent = os.getppid()
    try:
        engine, info, loaded = _build(config, started)
    except Exception as error:
        is_expected = isinstance(error, WorkerError | ModelNotFoundError | ValueError)
        logger.error("the engine cannot start: %s", error, exc_info=not is_expected)
        _say_farewell(link, f"the engine cannot start: {error}")
        return 1
    server = EngineServer(engine, link, info, time.monotonic, is_orphaned=lambda: os.getppid() != parent)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    signal.set_wakeup_fd(link.wakeup_fileno, warn_on_full_buffer=False)
    logger.info("ready: %s", msgspec.json.encode(info).decode())
    gc.collect()
    gc.freeze()  # what lives until the end need not be looked at again and again
    if loaded.device.type == "cpu":
        make_resident(loaded.pool.data)
    try:
        server.run()
    except Exception:
        logger.exception("the engine failed")
        return 1
    finally:
        signal.set_wakeup_fd(-1)
        engine.close()
    return 0


def build_engine(config: EngineConfig, started: float) -> tuple[Engine, EngineInfo]:
    """Raises WorkerError, ModelNotFoundError or ValueError for a wrong configuration or checkpoint."""
    return _build(config, started)[:2]


def _build(config: EngineConfig, started: float) -> tuple[Engine, EngineInfo, LoadedRunner]:
    if config.decision_record is not None:
        check_new(Path(config.decision_record))
    profile = None if config.latency_profile is None else read_profile(Path(config.latency_profile))
    loaded = load_runner(config)
    limits = EngineLimits(
        vocab_size=loaded.config.vocab_size,
        max_model_len=loaded.memory.max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_waiting=config.max_num_waiting,
        block_size=config.block_size,
        block_bytes=block_bytes(loaded),
    )
    mover = open_tiers(config, loaded)
    core = _make_core(config, _core_recipe(config, loaded, profile, mover))
    tiers = None if mover is None else EngineTiers(core, mover)
    engine = Engine(core, loaded.runner, limits, time.monotonic, tiers)
    return engine, _describe(config, loaded, started), loaded


def _make_core(config: EngineConfig, recipe: Recipe) -> Scheduler:
    if config.decision_record is not None:
        logger.info("recording decisions and prompts (as token ids) in %s", config.decision_record)
        return RecordingScheduler(recipe, Path(config.decision_record))
    core = recipe.build()
    assert isinstance(core, Scheduler)
    return core


def _core_recipe(
    config: EngineConfig, loaded: LoadedRunner, profile: LatencyProfile | None, mover: TierMover | None
) -> Recipe:
    memory = loaded.memory
    settings = Recipe(
        "SchedulerConfig",
        {
            "num_units": memory.num_units,
            "num_layers": loaded.config.num_layers,
            "layers_per_unit": memory.layers_per_unit,
            "block_size": config.block_size,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": memory.max_model_len,
            "max_num_waiting": config.max_num_waiting,
            "policy": config.policy,
            "enable_prefix_caching": config.enable_prefix_caching,
            "enable_chunked_prefill": config.enable_chunked_prefill,
            "max_wait_ms": config.max_wait_ms,
            "max_offline_step_ms": config.max_offline_step_ms,
            "refine_latency": True,
            **core_settings(config, loaded, mover),
            **form_settings(config, loaded.config),
        },
    )
    return Recipe("Scheduler", {"config": settings, "estimates": _estimates_recipe(config, loaded, profile, mover)})


def _estimates_recipe(
    config: EngineConfig, loaded: LoadedRunner, profile: LatencyProfile | None, mover: TierMover | None
) -> Recipe:
    coefficients = first_estimate(loaded) if profile is None else profile.coefficients
    form = "corrected" if profile is None else profile.form
    latency = Recipe(
        "LatencyModel",
        {"form": form, "coefficients": Recipe("LatencyCoefficients", msgspec.structs.asdict(coefficients))},
    )
    deviation = UNMEASURED_DEVIATION if profile is None else CALIBRATED_DEVIATION
    tiers = core_estimates(loaded, mover, 0.0 if profile is None else profile.host_bytes_per_second)
    solver = {"costs": step_costs(coefficients, loaded.config.num_layers)} if config.policy == "ellm" else {}
    beliefs = {"latency_deviation": deviation, "latency_margin": FIRST_MARGIN, **tiers, **solver}
    return Recipe("Estimates", {"latency": latency, **beliefs})


def _describe(config: EngineConfig, loaded: LoadedRunner, started: float) -> EngineInfo:
    memory = loaded.memory
    return EngineInfo(
        model=config.served_model_name or loaded.folder.name,
        dtype=loaded.dtype_name,
        device=str(loaded.device),
        vocab_size=loaded.config.vocab_size,
        max_model_len=memory.max_model_len,
        block_size=config.block_size,
        num_units=memory.num_units,
        units_per_block=memory.units_per_block,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        policy=config.policy,
        startup_seconds=time.monotonic() - started,
        cudagraph_sizes=loaded.graph_sizes,
    )


def _say_farewell(link: GatewayLink, message: str) -> None:
    link.wait(FAREWELL_MS)
    for gateway in {gateway for gateway, received in link.receive() if received is not None}:
        link.send(gateway, wire.Fatal(message))
