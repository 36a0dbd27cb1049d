"""A checkpoint and a configuration become an executor: the model on its device, and the pool it runs on."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from schedcore.api.config import EngineConfig
from schedcore.api.model_path import resolve_model
from worker import ops
from worker.base.errors import CheckpointError, MemoryPlanError
from worker.batch.host_memory import keep_freed_memory
from worker.batch.paged_pool import PagedPool
from worker.forms.cache_forms import has_copies, has_forms, has_int8_rows, max_guessed_tokens
from worker.forward.forward import Forward
from worker.forward.step_size import StepSize, step_sizes
from worker.forward.warm_up import warm_up
from worker.grammars.grammars import Grammars
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import ModelConfig, read_model_config
from worker.runner.make_forward import make_forward
from worker.runner.memory import MemoryPlan, allocate_pool, free_cpu_bytes, free_cuda_bytes, plan_memory
from worker.runner.model_runner import ModelRunner

logger = logging.getLogger("worker")

CPU_WARM_UP_TOKENS = 16
LAYER_GRAPH_BYTES = 40_000  # of a recording: ten kernels and their arguments


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    folder: Path
    config: ModelConfig
    dtype: torch.dtype  # of weights
    device: torch.device
    memory: MemoryPlan
    pool: PagedPool
    model: DecoderModel
    runner: ModelRunner
    graph_sizes: list[StepSize]  # that were recorded, ascending
    grammars: Grammars

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def cache_dtype_name(self) -> str:
        return str(self.pool.data.dtype).removeprefix("torch.")


def load_runner(config: EngineConfig) -> LoadedRunner:
    """Raises WorkerError, ModelNotFoundError or ValueError for a wrong configuration or checkpoint."""
    device = _resolve_device(config.device)
    if config.quantization is not None and device.type != "cpu":
        raise ValueError(f"quantization {config.quantization} runs on CPU only, not on {device}")
    ops.set_num_threads(config.num_threads or ops.DEFAULT_THREADS)
    folder = resolve_model(config.model)
    model_config = read_model_config(folder)
    logger.info("loading %s (%s) on %s", folder, model_config.architecture, device)
    model, dtype = load_model(
        folder,
        model_config,
        dtype=config.dtype,
        quantization=config.quantization,
        device=device,
        max_positions=config.max_model_len,
    )
    pool_dtype = cache_dtype(config, model_config, dtype, device)
    if device.type == "cpu":
        keep_freed_memory()  # from here on: what loading needed once is given back
    sizes = graph_sizes(config, device)
    try:
        free_bytes = _warm_up_and_measure(model, config, dtype, device) - graph_bytes(model_config, sizes, dtype)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    forms, copies = has_forms(config, model_config), has_copies(config)
    memory = plan_memory(config, model_config, pool_dtype, max(0, free_bytes), has_forms=forms, has_copies=copies)
    pool = allocate_pool(memory, config, model_config, pool_dtype, device, has_padding_row=bool(sizes))
    forward = _make_forward(model, pool, config, sizes)
    names_forced = max_guessed_tokens(config, model_config) > 0
    grammars = Grammars(folder, model_config.vocab_size, names_forced=names_forced)
    runner = ModelRunner(
        model, pool, max_num_seqs=config.max_num_seqs, seed=config.seed, forward=forward, grammars=grammars
    )
    return LoadedRunner(folder, model_config, dtype, device, memory, pool, model, runner, sizes, grammars)


def graph_sizes(config: EngineConfig, device: torch.device) -> list[StepSize]:
    """Of steps to record; none where there are no CUDA graphs, or none are wanted."""
    if device.type != "cuda" or config.enforce_eager:
        return []
    return step_sizes(min(config.max_cudagraph_capture_size, config.max_num_batched_tokens), config.max_num_seqs)


def graph_bytes(model: ModelConfig, sizes: list[StepSize], dtype: torch.dtype) -> int:
    """About what recording takes of the device: the largest batch's logits, twice, a layer's activations, and the
    recordings themselves."""
    if not sizes:
        return 0
    logits = model.vocab_size * (torch.float32.itemsize + dtype.itemsize)
    width = 8 * model.hidden_size + 2 * (model.num_heads * model.head_dim + model.kv_size) + 3 * model.intermediate_size
    num_seqs, num_tokens = max(size.num_seqs for size in sizes), max(size.num_tokens for size in sizes)
    results = sum(size.num_seqs for size in sizes) * model.hidden_size * dtype.itemsize
    launches = len(sizes) * model.num_layers * LAYER_GRAPH_BYTES
    return num_seqs * logits + num_tokens * width * dtype.itemsize + results + launches


def cache_dtype(
    config: EngineConfig, model: ModelConfig, weight_dtype: torch.dtype, device: torch.device
) -> torch.dtype:
    """Raises ValueError for what this device, or this model, cannot do."""
    if has_int8_rows(config) and device.type != "cpu":
        raise ValueError(f"cache_kinds int8 runs on CPU only, not on {device}")
    is_automatic = config.kv_cache_dtype == "auto"
    dtype: torch.dtype = weight_dtype if is_automatic else getattr(torch, config.kv_cache_dtype)
    if device.type != "cpu" and dtype is not weight_dtype:
        weights = str(weight_dtype).removeprefix("torch.")
        raise ValueError(
            f"kv_cache_dtype {config.kv_cache_dtype} with weights in {weights} runs on CPU only, not on {device}"
        )
    has_integers = dtype is torch.int8 or has_int8_rows(config)
    if has_integers and config.block_size * model.kv_size % 2:
        raise ValueError("a cache in int8 needs an even block_size for this model")
    return dtype


def _make_forward(model: DecoderModel, pool: PagedPool, config: EngineConfig, sizes: list[StepSize]) -> Forward:
    started = time.monotonic()

    def progress(done: int, total: int) -> None:
        if done == total or done % max(1, total // 4) == 0:
            seconds = time.monotonic() - started
            logger.info("recorded %d of %d steps, up to %d tokens, %.1f s", done, total, sizes[-1].num_tokens, seconds)

    try:
        return make_forward(model, pool, max_num_seqs=config.max_num_seqs, graph_sizes=sizes, progress=progress)
    except torch.OutOfMemoryError as error:
        raise MemoryPlanError(
            "no device memory is left to record steps: lower max_cudagraph_capture_size or cache_memory_bytes, "
            f"or set enforce_eager ({error})"
        ) from error


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
    return free_cuda_bytes(device, config.gpu_memory_utilization) if is_cuda else free_cpu_bytes()
