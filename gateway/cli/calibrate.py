"""`hocket calibrate`: how long this machine takes for a model's steps, fitted and saved as a latency profile.

A process of the engine that will serve it loads the model as an engine does and measures; the fit happens here
(schedcore/latency/step_measurements.py).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli.options import OptionsError, add_flag, engine_config
from gateway.cli.parser import examples, said
from gateway.cli.simulation_options import percent, positive_int, progress_bar, seconds, write_json
from schedcore.api.config import EngineConfig
from schedcore.api.model_path import DEMO, ModelNotFoundError, resolve_model
from schedcore.api.setting import settings
from schedcore.latency.calibration import Calibration
from schedcore.latency.latency_profile import LatencyCoefficients, LatencyProfile, save_profile
from schedcore.latency.step_measurements import (
    BUSY_NOISE,
    CalibrationReport,
    MeasuringFailure,
    MeasuringProgress,
    Message,
    StepMeasurements,
    calibration_report,
)

DEFAULT_SECONDS = 45.0
_FAILED, _MISUSED = 1, 2  # exit statuses


class CalibrationError(Exception):
    """One line that says why there is no profile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = examples(
        "hocket calibrate /models/qwen3-0.6b --dtype bfloat16",
        "hocket calibrate demo --seconds 10 --json > report.json",
        "hocket calibrate /models/qwen3-0.6b --engine vllm --vllm-python /opt/vllm/bin/python",
    )
    parser.add_argument("model", nargs="?", default=DEMO, metavar="MODEL", help="as for hocket serve (default: demo)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the profile (default: MODEL.latency.json, in this directory)"
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout instead of a table")
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=DEFAULT_SECONDS,
        metavar="S",
        help=f"to measure, about; longer: less disturbed by other work (default: {DEFAULT_SECONDS:.0f})",
    )
    group = parser.add_argument_group("engine, as it will be served")
    group.add_argument("--engine", choices=list(MODULES), default="hocket", help="whose steps (default: hocket)")
    group.add_argument("--vllm-python", metavar="FILE", help="of the environment that has vLLM (default: this one)")
    _add_engine_options(group)


MODULES = {  # by engine: what python -m runs to measure
    "hocket": "worker.process.calibration_process",
    "vllm": "vllm_engine.calibration.calibration_process",
}
_COUNT = {"type": positive_int}
_ENGINE_OPTIONS: dict[str, dict[str, Any]] = {  # settings that change how long a step takes; what differs here
    "device": {"metavar": "NAME"},
    "dtype": {"help": "of weights and cache"},
    "kv_cache_dtype": {"help": "of the cache (default: that of the weights)"},
    "quantization": {"help": "of weights, on CPU"},
    "num_threads": _COUNT,
    "max_model_len": _COUNT,
    "max_num_seqs": _COUNT,
    "max_num_batched_tokens": {**_COUNT, "help": "tokens in one step (default: {default})"},
    "cache_memory_bytes": {},
    "block_size": _COUNT,
    "layers_per_unit": _COUNT,
    "vllm_options": {},
    "enforce_eager": {},
}


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    """Only what is given ends up in the namespace: EngineConfig has the defaults."""
    declared = {setting.field: setting for setting in settings(EngineConfig)}
    for field, differently in _ENGINE_OPTIONS.items():
        add_flag(group, declared[field], **differently)


def run(args: argparse.Namespace, module: str | None = None) -> int:
    """The exit status. module: what `python -m` runs to measure, if not the engine's own."""
    try:
        python = _python(args)
        folder = resolve_model(args.model)
        name = folder.name if Path(args.model).expanduser().is_dir() else args.model
        config = engine_config(vars(args), folder, name)
        path = args.output or Path(f"{_file_name(name)}.latency.json")
        if not path.absolute().parent.is_dir():
            raise OptionsError(f"--output: {path.absolute().parent} is no directory")
        report = calibration_report(measure(config, args.seconds, module or MODULES[args.engine], python))
        save_profile(report.profile, path)
    except OptionsError as error:
        return _complain(str(error), _MISUSED)
    except (CalibrationError, ModelNotFoundError, ValueError) as error:
        return _complain(str(error), _FAILED)
    except OSError as error:
        return _complain(f"the profile cannot be written: {said(error)}", _FAILED)
    if args.json:
        write_json(report)
    else:
        print_report(report, path, Console())
    return 0


def _python(args: argparse.Namespace) -> str:
    """Raises OptionsError."""
    if args.engine != "vllm" and (args.vllm_python is not None or "vllm_options" in args):
        raise OptionsError("--vllm-python and --vllm-option need --engine vllm")
    python: str = args.vllm_python or sys.executable
    if shutil.which(python) is None:
        raise OptionsError(f"--vllm-python: {python} is no program")
    return python


def measure(
    config: EngineConfig, seconds_to_measure: float, module: str, python: str = sys.executable
) -> StepMeasurements:
    """In a process of its own, with a progress bar on stderr. Raises CalibrationError."""
    command = [python, "-m", module, "--seconds", str(seconds_to_measure)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        progress_bar(f"measuring {config.served_model_name}") as show,
    ):
        try:
            return _follow(process, config, show)
        finally:
            process.kill()


def _follow(
    process: subprocess.Popen[bytes], config: EngineConfig, show: Callable[[int, int], None]
) -> StepMeasurements:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(config))
        process.stdin.close()
    except BrokenPipeError:
        raise CalibrationError("the measuring process ended before it began") from None
    for line in process.stdout:
        match msgspec.json.decode(line, type=Message):
            case MeasuringProgress(done, total):
                show(done, total)
            case MeasuringFailure(message):
                raise CalibrationError(message)
            case StepMeasurements() as measurements:
                return measurements
    raise CalibrationError(f"the measuring process ended with status {process.wait()} before it had measured")


def _file_name(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"


def print_report(report: CalibrationReport, path: Path, console: Console) -> None:
    profile = report.profile
    console.print(f"{profile.model} on {profile.device}", markup=False, highlight=False)
    errors = Table(title="error of predicted step times")
    for heading in ("", "steps", "mean", "median", "p95"):
        errors.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for label, fitted in (("corrected (saved)", report.corrected), ("Echo's form", report.echo)):
        for row in _error_rows(label, fitted):
            errors.add_row(*row)
    console.print(errors)
    console.print(_coefficients(profile))
    console.print(f"copies from the host tier: {profile.host_bytes_per_second / 1e9:.1f} GB/s", highlight=False)
    console.print(f"limits: {profile.limits}", markup=False, highlight=False)
    console.print(f"saved as {path}; use it with hocket serve --latency-profile {path}", markup=False, highlight=False)
    if report.noise > BUSY_NOISE:
        noise = percent(report.noise)
        text = f"warning: equal steps differed by {noise}: the machine was busy; repeat when it is quiet"
        Console(stderr=True).print(text, markup=False, highlight=False)


def _error_rows(label: str, fitted: Calibration) -> list[tuple[str, ...]]:
    parts = ((f"{label}, held out", fitted.held_out_error), ("  fitted", fitted.train_error))
    return [(text, str(e.num_samples), percent(e.mean), percent(e.median), percent(e.p95)) for text, e in parts]


def _coefficients(profile: LatencyProfile) -> Table:
    table = Table(title="coefficients")
    table.add_column("", no_wrap=True)
    table.add_column("us", justify="right")
    for name in LatencyCoefficients.__struct_fields__:
        value = getattr(profile.coefficients, name)
        if name == "overlap":
            table.add_row("overlap (a share)", f"{value:.2f}")
        elif value:
            table.add_row(f"{name}{_unit(name)}", f"{1e6 * value:.4g}")
    return table


def _unit(name: str) -> str:
    if name in ("step_base", "prefill_floor", "decode_base"):
        return ""
    per = {"prefill_pair": "pair of tokens", "prefill_chunk": "chunk", "decode_seq": "decode"}
    return f" per {per.get(name, 'token')}"


def _complain(message: str, status: int) -> int:
    print(f"hocket calibrate: {message}", file=sys.stderr, flush=True)
    return status
