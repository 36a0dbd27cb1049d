"""The environment variables that vLLM reads: set here before it is imported, where nobody else has set them."""

from __future__ import annotations

import os


def prepare_environment(is_in_process: bool) -> None:
    """is_in_process: the model runs in this process, not in workers of vLLM's."""
    if is_in_process:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        if "libiomp" in os.environ.get("LD_PRELOAD", ""):  # as vLLM says to a worker of its own: 200 ms else
            os.environ.setdefault("KMP_BLOCKTIME", "5")
            os.environ.setdefault("KMP_TPAUSE", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
