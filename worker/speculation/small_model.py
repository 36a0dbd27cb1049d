"""A checkpoint and the engine's configuration become a small model that guesses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from schedcore._core import Scheduler, SchedulerConfig
from schedcore.api.config import EngineConfig
from schedcore.api.model_path import ModelNotFoundError, resolve_model
from worker.base.errors import CheckpointError
from worker.models.model_config import ModelConfig, read_model_config
from worker.runner.loaded_runner import LoadedRunner, load_runner
from worker.speculation.guesser import Guesser, NoGuesser
from worker.speculation.model_guesser import ModelGuesser

logger = logging.getLogger("worker")

CACHE_TOKENS = 1 << 16  # of all requests together, in 16 bits; longer texts are not guessed
STEP_TOKENS = 1024
PADDING = 1024  # tokens by which the vocabularies of one family's models differ


@dataclass(frozen=True, slots=True)
class SmallModel:
    loaded: LoadedRunner
    scheduler: SchedulerConfig

    def guesser(self, core: Scheduler, engine_model: ModelConfig, clock: Callable[[], float]) -> Guesser:
        """Raises ValueError where the two models cannot have one vocabulary."""
        own = self.loaded.config
        if abs(own.vocab_size - engine_model.vocab_size) > PADDING:
            raise ValueError(
                f"speculative_model {self.loaded.folder.name} has {own.vocab_size} tokens and the model has "
                f"{engine_model.vocab_size}: it guesses only for models of its own vocabulary"
            )
        guesser = ModelGuesser(
            core,
            Scheduler(self.scheduler),
            self.loaded.runner,
            vocab_size=own.vocab_size,
            max_model_len=self.loaded.memory.max_model_len,
            vocab_size_of_engine=engine_model.vocab_size,
            clock=clock,
        )
        logger.info("%s guesses a token in %.2f ms", self.loaded.folder.name, 1000 * guesser.measure())
        return guesser


def load_small_model(config: EngineConfig) -> SmallModel | None:
    """None where the configuration has none. Raises as load_runner()."""
    if config.speculative_model is None:
        return None
    try:
        model = read_model_config(resolve_model(config.speculative_model))
    except (CheckpointError, ModelNotFoundError) as error:
        raise ValueError(f"speculative_model: {error}") from None
    if not model.has_head:
        raise ValueError(f"speculative_model {config.speculative_model} has no head: it makes no tokens")
    own = msgspec.structs.replace(
        config,
        model=config.speculative_model,
        served_model_name="",
        policy="fcfs",
        scheduler_options=(),
        speculation="off",
        speculative_model=None,
        lora_modules=(),
        max_model_len=None,
        max_num_batched_tokens=STEP_TOKENS,
        cache_memory_bytes=2 * model.num_layers * model.kv_size * torch.bfloat16.itemsize * CACHE_TOKENS,
        cache_kinds="kv",
        partial_caching=False,
        host_cache_bytes=0,
        disk_cache_dir=None,
        enable_prefix_caching=True,
        latency_profile=None,
        decision_record=None,
    )
    loaded = load_runner(own)
    scheduler = SchedulerConfig(
        num_units=loaded.memory.num_units,
        num_layers=loaded.config.num_layers,
        layers_per_unit=loaded.memory.layers_per_unit,
        block_size=own.block_size,
        max_num_seqs=own.max_num_seqs,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=loaded.memory.max_model_len,
        max_num_waiting=own.max_num_seqs,
    )
    return SmallModel(loaded, scheduler)


def guesser_of(
    small: SmallModel | None, core: Scheduler, engine_model: ModelConfig, clock: Callable[[], float]
) -> Guesser:
    return NoGuesser() if small is None else small.guesser(core, engine_model, clock)
