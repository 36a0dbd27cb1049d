"""vLLM's model runner, where it runs in the engine's own process."""

from __future__ import annotations

from typing import Any


def runner_here(core: Any) -> Any:
    """Of a vllm EngineCore; None: it runs in processes of its own."""
    worker = getattr(core.model_executor, "driver_worker", None)  # in this process, with the executor for one device
    return getattr(getattr(worker, "worker", worker), "model_runner", None)
