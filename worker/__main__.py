"""`python -m worker`: the engine process. See schedcore/serving/engine_main.py."""

from __future__ import annotations

import sys

from schedcore.serving.engine_main import Serve, run_engine


def load_serve() -> Serve:
    from worker.process.engine_process import serve  # torch takes longer to import than all before it

    return serve


if __name__ == "__main__":
    sys.exit(run_engine("worker", load_serve))
