"""The composition root of the engine process: builds everything once, serves until told to stop."""

from __future__ import annotations

import gc
import logging
import math
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from torch import Tensor

from schedcore._core import Scheduler
from schedcore.api.config import STARVING_TURN_MS, EngineConfig
from schedcore.api.model_path import ModelNotFoundError
from schedcore.api.scheduler_options import parse_scheduler_options
from schedcore.api.types import GENERATION, EngineInfo
from schedcore.latency.latency_profile import FIRST_MARGIN, LatencyProfile, read_profile
from schedcore.record.decision_record import check_new
from schedcore.record.recipe import Recipe
from schedcore.record.recording_scheduler import RecordingScheduler
from schedcore.serving.engine_main import IsOrphaned
from schedcore.serving.engine_server import EngineServer
from schedcore.serving.gateway_link import GatewayLink
from worker.base.errors import WorkerError
from worker.batch.host_memory import make_resident
from worker.calibration.first_estimate import first_estimate
from worker.calibration.step_costs import step_costs
from worker.forms.cache_forms import form_settings, max_guessed_tokens
from worker.process.engine import Engine, EngineLimits
from worker.process.peer_setup import PeerOptions, open_peers
from worker.process.tier_setup import (
    block_bytes,
    core_estimates,
    core_settings,
    keeps_sessions_only,
    memory_to_fill,
    open_sessions,
    open_tiers,
)
from worker.runner.loaded_runner import LoadedRunner, load_runner
from worker.speculation.small_model import guesser_of, load_small_model
from worker.tiers.engine_peers import EnginePeers
from worker.tiers.engine_tiers import EngineTiers, NoTiers
from worker.tiers.tier_mover import TierMover

logger = logging.getLogger("worker")

# How far off the scheduler takes a coefficient of its latency model to be, relative, before it has measured steps.
CALIBRATED_DEVIATION, UNMEASURED_DEVIATION = 0.3, 2.0
FILL_SECONDS = 0.25  # of the start, that go to memory which the first requests would wait for
FAREWELL_MS = 1000  # that a gateway may take to say Hello to an engine that could not start


def serve(config: EngineConfig, link: GatewayLink, started: float, is_orphaned: IsOrphaned) -> int:
    """Exit status: 0 stopped, 1 failed. started: time.monotonic() of the process's start."""
    try:
        incarnation = secrets.token_hex(16)
        engine, info, to_fill, peers = _build(config, started, _peer_options(link, incarnation))
    except Exception as error:
        is_expected = isinstance(error, WorkerError | ModelNotFoundError | ValueError)
        logger.error("the engine cannot start: %s", error, exc_info=not is_expected)
        link.say_farewell(f"the engine cannot start: {error}")
        return 1
    if to_fill:
        make_resident(*to_fill, at_once_seconds=FILL_SECONDS)
    server = EngineServer(engine, link, info, time.monotonic, is_orphaned, incarnation, peers)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    signal.set_wakeup_fd(link.wakeup_fileno, warn_on_full_buffer=False)
    logger.info("ready: %s", msgspec.json.encode(info).decode())
    gc.collect()
    gc.freeze()  # what lives until the end need not be looked at again and again
    try:
        server.run()
    except Exception:
        logger.exception("the engine failed")
        return 1
    finally:
        signal.set_wakeup_fd(-1)
        engine.close()
    return 0


def build_engine(
    config: EngineConfig, started: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Engine, EngineInfo]:
    """Raises WorkerError, ModelNotFoundError or ValueError for a wrong configuration or checkpoint."""
    return _build(config, started, None, clock)[:2]


def build_peered_engine(config: EngineConfig, started: float, options: PeerOptions) -> tuple[Engine, EnginePeers]:
    """The same of an engine that has peers, and a host tier for them."""
    engine, _, _, peers = _build(config, started, options)
    assert peers is not None
    return engine, peers


def _peer_options(link: GatewayLink, incarnation: str) -> PeerOptions | None:
    network = link.network
    if network is None or network.blocks is None:
        return None
    return PeerOptions(network.blocks, network.tls, incarnation, link.wake, network.block_transport)


def _build(
    config: EngineConfig, started: float, options: PeerOptions | None, clock: Callable[[], float] = time.monotonic
) -> tuple[Engine, EngineInfo, list[Tensor], EnginePeers | None]:
    """Third: memory that should be made resident when there is time."""
    if config.decision_record is not None:
        check_new(Path(config.decision_record))
    profile = None if config.latency_profile is None else read_profile(Path(config.latency_profile))
    small = load_small_model(config)  # first: what it takes is not free for the other's cache
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
    recipe = _core_recipe(config, loaded, profile, mover, has_peers=options is not None)
    core = _make_core(config, recipe)
    fingerprint = recipe.argument("config", "cache_fingerprint")
    peers = open_peers(options, mover, core, fingerprint, config.block_size)
    tiers = NoTiers() if mover is None else EngineTiers(core, mover, peers)
    sessions = open_sessions(config, mover, core, fingerprint)
    guesser = guesser_of(small, core, loaded.config, clock)
    engine = Engine(core, loaded.runner, limits, clock, tiers, sessions, loaded.grammars, guesser)
    to_fill = memory_to_fill(config, loaded, mover)
    return engine, _describe(config, loaded, mover, recipe, started), to_fill, peers


def _make_core(config: EngineConfig, recipe: Recipe) -> Scheduler:
    if config.decision_record is not None:
        logger.info("recording decisions and prompts (as token ids) in %s", config.decision_record)
        return RecordingScheduler(recipe, Path(config.decision_record))
    core = recipe.build()
    assert isinstance(core, Scheduler)
    return core


def _core_recipe(
    config: EngineConfig,
    loaded: LoadedRunner,
    profile: LatencyProfile | None,
    mover: TierMover | None,
    *,
    has_peers: bool,
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
            "starving_turn_ms": STARVING_TURN_MS,
            "max_ttft_ms": config.max_ttft_ms or math.inf,
            "max_decode_step_ms": config.max_decode_step_ms or 0.0,
            "max_offline_step_ms": config.max_offline_step_ms or 0.0,
            "refine_latency": True,
            "max_guessed_tokens": max_guessed_tokens(config, loaded.config),
            **core_settings(config, loaded, mover, has_peers=has_peers),
            **form_settings(config, loaded.config),
            # Last: what was asked for by name counts.
            **parse_scheduler_options(config.scheduler_options, enable_chunked_prefill=config.enable_chunked_prefill),
        },
    )
    return Recipe("Scheduler", {"config": settings, "estimates": _estimates_recipe(config, loaded, profile, mover)})


def _estimates_recipe(
    config: EngineConfig, loaded: LoadedRunner, profile: LatencyProfile | None, mover: TierMover | None
) -> Recipe:
    coefficients = first_estimate(loaded, config) if profile is None else profile.coefficients
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


def _max_decode_step_ms(config: EngineConfig, recipe: Recipe) -> float | None:
    if config.policy != "hocket" or recipe.argument("config", "enable_deadlines") is False:
        return None
    if config.max_decode_step_ms is not None or config.latency_profile is None:
        return config.max_decode_step_ms or 0.0
    estimates = recipe.arguments["estimates"]
    assert isinstance(estimates, Recipe)
    seconds: float = estimates.build().itl_seconds(config.max_num_seqs)
    return 1000 * seconds


def _describe(
    config: EngineConfig,
    loaded: LoadedRunner,
    mover: TierMover | None,
    recipe: Recipe,
    started: float,
) -> EngineInfo:
    memory = loaded.memory
    coefficients = recipe.argument("estimates", "latency", "coefficients")
    assert isinstance(coefficients, Recipe)
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
        max_decode_step_ms=_max_decode_step_ms(config, recipe),
        is_step_bound_derived=config.max_decode_step_ms is None,
        max_ttft_ms=config.max_ttft_ms or None,
        host_cache_bytes=0 if mover is None else mover.host.num_slots * mover.host.block_bytes,
        host_keeps_sessions_only=keeps_sessions_only(config),
        block_bytes=block_bytes(loaded),
        restore_bytes_per_second=0.0 if mover is None else recipe.argument("estimates", "host_bytes_per_second"),
        cudagraph_sizes=sorted({size.num_tokens for size in loaded.graph_sizes}),
        has_grammars=loaded.grammars.has_vocabulary,
        latency_form=recipe.argument("estimates", "latency", "form"),
        latency_coefficients=msgspec.convert(coefficients.arguments, dict[str, float]),
        missing=[] if loaded.config.has_head else [GENERATION],
    )
