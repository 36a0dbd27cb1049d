"""vLLM's EngineCore as our configuration has it, in this process, with our scheduler class and our mends."""

from __future__ import annotations

import logging
from typing import Any

from schedcore.api.config import EngineConfig
from vllm_engine.environment import prepare_environment
from vllm_engine.settings import engine_arguments

logger = logging.getLogger("vllm_engine")


def make_core(config: EngineConfig) -> Any:
    """Not steered yet. Raises ValueError for a wrong setting, and what vLLM raises for a model."""
    arguments = engine_arguments(config)
    prepare_environment(is_in_process=arguments.get("distributed_executor_backend") == "uni")
    from vllm.config import KVTransferConfig  # takes seconds to import
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    from vllm_engine.runner.cpu_seeds import mend_seeds
    from vllm_engine.runner.cpu_threads import limit_threads
    from vllm_engine.runner.model_runner import runner_here
    from vllm_engine.scheduler import SteeredAsyncScheduler, SteeredScheduler

    if isinstance(transfer := arguments.get("kv_transfer_config"), dict):
        arguments["kv_transfer_config"] = KVTransferConfig(**transfer)
    vllm_config = EngineArgs(**arguments).create_engine_config()
    if _lacks_states_of_chunks(vllm_config):
        logger.warning("no prefix cache: vLLM on CPU has no Mamba states in the middle of a prompt")
        vllm_config = EngineArgs(**arguments | {"enable_prefix_caching": False}).create_engine_config()
    scheduling = vllm_config.scheduler_config
    scheduling.scheduler_cls = SteeredAsyncScheduler if scheduling.async_scheduling else SteeredScheduler
    is_on_cpu = vllm_config.device_config.device_type == "cpu"
    if is_on_cpu and vllm_config.parallel_config.distributed_executor_backend == "uni":
        limit_threads(vllm_config)
    core = EngineCore(vllm_config, Executor.get_class(vllm_config), log_stats=False)
    if is_on_cpu and (runner := runner_here(core)) is not None:
        mend_seeds(runner)
    return core


def _lacks_states_of_chunks(vllm_config: Any) -> bool:
    """A prefix cache keeps Mamba states at the ends of blocks; vLLM 0.32 asks its kernel for them, and the one for CPUs
    gives those at the ends of prompts alone (an IndexError in mamba_mixer2.py)."""
    is_on_cpu = vllm_config.device_config.device_type == "cpu"
    has_states = bool(vllm_config.model_config.is_hybrid or vllm_config.model_config.has_inner_state)
    return is_on_cpu and has_states and bool(vllm_config.cache_config.enable_prefix_caching)
