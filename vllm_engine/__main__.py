"""`python -m vllm_engine`: the engine process of vLLM. See schedcore/serving/engine_main.py."""

from __future__ import annotations

import sys

from schedcore.serving.engine_main import Serve, run_engine


def load_serve() -> Serve:
    from vllm_engine.engine_process import serve  # and vLLM longer still

    return serve


if __name__ == "__main__":
    sys.exit(run_engine("vllm_engine", load_serve))
