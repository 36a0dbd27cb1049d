"""`python -m worker.process.calibration_process`: measures the steps of a model, for `hocket calibrate`.

Reads its EngineConfig as JSON from standard input; writes the messages of schedcore/latency/step_measurements.py, one
JSON per line.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import sys

import msgspec

from schedcore.api.config import EngineConfig
from schedcore.api.model_path import ModelNotFoundError
from schedcore.latency.step_measurements import MeasuringFailure, MeasuringProgress, Message
from worker.base.errors import WorkerError
from worker.batch.host_memory import make_resident
from worker.calibration.measure_model import measure_model
from worker.runner.loaded_runner import load_runner

INTERRUPTED = 130  # what shells expect after Ctrl-C


def main() -> int:
    """Exit status: 0 measured, 1 failed, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m worker.process.calibration_process")
    parser.add_argument("--seconds", type=float, required=True, help="to measure, about")
    seconds = parser.parse_args().seconds
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
        if config.kv_cache_dtype != "int8":  # which has no hidden states
            config = msgspec.structs.replace(config, cache_kinds="auto")  # steps with these are measured, too
        loaded = load_runner(config)
        if loaded.device.type == "cpu":
            make_resident(loaded.pool.data).join()  # as it is soon after an engine's start
        gc.collect()
        gc.freeze()  # as in an engine
        _write(measure_model(loaded, config, seconds=seconds, progress=_report))
    except (WorkerError, ModelNotFoundError, ValueError, msgspec.DecodeError) as error:
        _write(MeasuringFailure(str(error)))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads any more
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _report(done: int, total: int) -> None:
    _write(MeasuringProgress(done, total))


def _write(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
