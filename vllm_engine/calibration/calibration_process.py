"""`python -m vllm_engine.calibration.calibration_process`: measures vLLM's steps, for `hocket calibrate --engine vllm`.

Reads its EngineConfig as JSON from standard input; writes the messages of schedcore/latency/step_measurements.py, one
JSON per line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

import msgspec

from schedcore.api.config import VLLM_POLICY, EngineConfig
from schedcore.latency.step_measurements import MeasuringFailure, MeasuringProgress, Message
from vllm_engine.compat import check_version, vllm_version
from vllm_engine.make_core import make_core

INTERRUPTED = 130  # what shells expect after Ctrl-C


def main() -> int:
    """Exit status: 0 measured, 1 failed, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m vllm_engine.calibration.calibration_process")
    parser.add_argument("--seconds", type=float, required=True, help="to measure, about")
    seconds = parser.parse_args().seconds
    with os.fdopen(os.dup(1), "wb") as messages:
        os.dup2(2, 1)  # vLLM writes to standard output, too

        def write(message: Message) -> None:
            messages.write(msgspec.json.encode(message) + b"\n")
            messages.flush()

        try:
            config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
            check_version(vllm_version())
            core = make_core(msgspec.structs.replace(config, policy=VLLM_POLICY, enable_prefix_caching=False))
            from vllm_engine.calibration.measure_core import measure_core

            try:
                write(measure_core(core, seconds, lambda done, total: write(MeasuringProgress(done, total))))
            finally:
                core.shutdown()
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # nobody reads any more
            return 1
        except Exception as error:  # vLLM refuses a model in many ways
            with contextlib.suppress(OSError):
                write(MeasuringFailure(f"the vLLM engine cannot be measured: {error}"))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
