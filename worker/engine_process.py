"""The composition root of the engine process: builds everything once, serves until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import torch

from schedcore import wire
from schedcore._core import Scheduler, SchedulerConfig
from schedcore.config import EngineConfig
from schedcore.model_path import ModelNotFoundError, resolve_model
from schedcore.types import EngineInfo
from worker import ops
from worker.engine import Engine, EngineLimits
from worker.engine_server import EngineServer
from worker.errors import WorkerError
from worker.gateway_link import GatewayLink
from worker.loader import load_model
from worker.memory import MemoryPlan, allocate_pool, free_cpu_bytes, free_cuda_bytes, plan_memory
from worker.model_runner import ModelRunner
from worker.models.decoder import DecoderModel
from worker.models.model_config import ModelConfig, read_model_config
from worker.warm_up import warm_up

logger = logging.getLogger("worker")

CPU_WARM_UP_TOKENS = 16
FAREWELL_MS = 1000  # that a gateway may take to say Hello to an engine that could not start


def serve(config: EngineConfig, link: GatewayLink, started: float) -> int:
    """Exit status: 0 stopped, 1 failed. started: time.monotonic() of the process's start."""
    parent = os.getppid()
    try:
        engine, info = build_engine(config, started)
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
    try:
        server.run()
    except Exception:
        logger.exception("the engine failed")
        return 1
    finally:
        signal.set_wakeup_fd(-1)
    return 0


def build_engine(config: EngineConfig, started: float) -> tuple[Engine, EngineInfo]:
    """Raises WorkerError, ModelNotFoundError or ValueError for a wrong configuration or checkpoint."""
    device = _resolve_device(config.device)
    ops.set_num_threads(config.num_threads or torch.get_num_threads())
    folder = resolve_model(config.model)
    model_config = read_model_config(folder)
    logger.info("loading %s (%s) on %s", folder, model_config.architecture, device)
    model, dtype = load_model(
        folder, model_config, dtype=config.dtype, device=device, max_positions=config.max_model_len
    )
    free_bytes = _warm_up_and_measure(model, config, dtype, device)
    memory = plan_memory(config, model_config, dtype, free_bytes)
    pool = allocate_pool(memory, config, model_config, dtype, device)
    runner = ModelRunner(
        model,
        pool,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
    )
    limits = EngineLimits(
        vocab_size=model_config.vocab_size,
        max_model_len=memory.max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_waiting=config.max_num_waiting,
    )
    engine = Engine(_make_core(config, model_config, memory), runner, limits, time.monotonic)
    return engine, _describe(config, folder, model_config, memory, dtype, device, started)


def _resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name} was asked for, but there is no CUDA device")
    return device


def _warm_up_and_measure(model: DecoderModel, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that the pool may take."""
    is_cuda = device.type == "cuda"
    max_len = min(config.max_model_len or model.config.max_positions, model.config.max_positions)
    # on CUDA the largest step, so that what is free afterwards is what the pool may have
    num_tokens = config.max_num_batched_tokens if is_cuda else min(CPU_WARM_UP_TOKENS, max_len)
    warm_up(model, num_tokens=num_tokens, num_samples=config.max_num_seqs, max_len=max_len, dtype=dtype, device=device)
    return free_cuda_bytes(device) if is_cuda else free_cpu_bytes()


def _make_core(config: EngineConfig, model: ModelConfig, memory: MemoryPlan) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            num_units=memory.num_units,
            num_layers=model.num_layers,
            layers_per_unit=memory.layers_per_unit,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=memory.max_model_len,
            max_num_waiting=config.max_num_waiting,
            policy=config.policy,
            enable_prefix_caching=config.enable_prefix_caching,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
    )


def _describe(
    config: EngineConfig,
    folder: Path,
    model: ModelConfig,
    memory: MemoryPlan,
    dtype: torch.dtype,
    device: torch.device,
    started: float,
) -> EngineInfo:
    return EngineInfo(
        model=config.served_model_name or folder.name,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        vocab_size=model.vocab_size,
        max_model_len=memory.max_model_len,
        block_size=config.block_size,
        num_units=memory.num_units,
        units_per_block=memory.units_per_block,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        policy=config.policy,
        startup_seconds=time.monotonic() - started,
    )


def _say_farewell(link: GatewayLink, message: str) -> None:
    link.wait(FAREWELL_MS)
    for gateway in {gateway for gateway, _ in link.receive()}:
        link.send(gateway, wire.Fatal(message))
