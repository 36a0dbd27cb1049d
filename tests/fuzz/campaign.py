"""`make fuzz`: every target for its share of the time, as many at once as there are cores, and a table of the outcome.

New inputs and crashes lie in build/fuzz/<target>; a later run goes on from there. `--merge` adds to the kept corpus
(tests/fuzz/corpus) the fewest and smallest of them that reach what it does not reach.
Exit status: 0, or 1 if an input crashed a target, took longer than the limit, or took too much memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.target import CORPUS, NAMES

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
CORE = "core"  # the scheduling core, in C++: tests/fuzz/core_fuzz.cpp
CORE_BINARY = BUILD / "cmake" / "core_fuzz"
SECONDS_PER_INPUT = 25  # a slow input is a finding, too; a busy machine is none
MEMORY_MB = 2048
GRACE_SECONDS = 240  # beyond its share, for imports, reading the corpus and the last input
_STATUS = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)")
_RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)|Done (\d+) runs")


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    num_runs: int
    coverage: int  # branches seen
    num_inputs: int  # in the working corpus
    num_kept: int
    crashes: list[Path]
    problem: str  # why it ended badly, or empty


def main() -> int:
    arguments = _arguments()
    if arguments.merge:
        for name in arguments.targets or _available():
            _merge(name)
        return 0
    names = arguments.targets or _available()
    jobs = max(1, min(arguments.jobs or os.cpu_count() or 1, len(names)))
    seconds = max(5, int(arguments.minutes * 60 * jobs / len(names)))
    print(f"fuzzing {len(names)} targets, {jobs} at a time, {seconds} s each; inputs in {BUILD}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda name: _run(name, seconds, arguments.seed), names))
    _report(results)
    return int(any(result.crashes or result.problem for result in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("targets", nargs="*", help=f"{', '.join([CORE, *NAMES])} (default: all)")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--jobs", type=int, help="targets at a time (default: one per core)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of what is tried: the same again (default: another each time)"
    )
    parser.add_argument("--merge", action="store_true", help="instead: take what is new into tests/fuzz/corpus")
    return parser.parse_args()


def _available() -> list[str]:
    """Loudly without what is not there."""
    names: list[str] = []
    if CORE_BINARY.is_file():
        names.append(CORE)
    else:
        print("!!! NOT FUZZED: the scheduling core: clang or its fuzzing runtime is missing (CONTRIBUTING.md)")
    if importlib.util.find_spec("atheris") is not None:
        names += NAMES
    else:
        print(f"!!! NOT FUZZED: everything in Python: Atheris is not installed for {sys.version.split()[0]}")
    if not names:
        sys.exit("nothing can be fuzzed here")
    return names


def _command(name: str) -> list[str]:
    return [str(CORE_BINARY)] if name == CORE else [sys.executable, str(Path(__file__).parent / "run_target.py"), name]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def _run(name: str, seconds: int, seed: int) -> Result:
    folder = BUILD / name
    inputs, crashes, kept = folder / "corpus", folder / "crashes", CORPUS / name
    for path in (inputs, crashes, kept):
        path.mkdir(parents=True, exist_ok=True)
    before = set(crashes.iterdir())
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        "-use_value_profile=1",
    ]
    log = folder / "log.txt"
    started = time.monotonic()
    with log.open("wb") as output:
        problem = _wait([*_command(name), *options, str(inputs), str(kept)], output, seconds + GRACE_SECONDS)
    text = log.read_text(errors="replace")
    found = sorted(set(crashes.iterdir()) - before)
    print(f"{name}: {time.monotonic() - started:.0f} s{', ' + problem if problem else ''}; {log}", flush=True)
    return Result(name, *_statistics(text), len(list(inputs.iterdir())), len(list(kept.iterdir())), found, problem)


def _wait(command: list[str], output: object, seconds: float) -> str:
    process = subprocess.Popen(
        ["nice", *command], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=_environment()
    )
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "did not end"
    return f"exit status {status}" if status else ""


def _statistics(log: str) -> tuple[int, int]:
    """Executions, and branches seen."""
    runs = [int(a or b) for a, b in _RUNS.findall(log)]
    lines = _STATUS.findall(log)
    num_runs = max([*runs, *(int(line[0]) for line in lines[-1:])], default=0)
    return num_runs, int(lines[-1][1]) if lines else 0


def _report(results: list[Result]) -> None:
    print(f"\n{'target':<12}{'executions':>12}{'coverage':>10}{'inputs':>8}{'kept':>6}{'crashes':>9}")
    for r in results:
        print(
            f"{r.name:<12}{r.num_runs:>12}{r.coverage:>10}{r.num_inputs:>8}{r.num_kept:>6}{len(r.crashes):>9}"
            f"{'  ' + r.problem if r.problem else ''}"
        )
    for r in results:
        for path in r.crashes:
            again = " ".join([*_command(r.name), str(path)])
            print(f"\n{r.name}: {path.name}\n  again: PYTHONPATH=. {again}")
        if r.problem:
            print((BUILD / r.name / "log.txt").read_text(errors="replace")[-3000:])


def _merge(name: str) -> None:
    inputs, kept = BUILD / name / "corpus", CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    if not inputs.is_dir():
        print(f"{name}: nothing to merge")
        return
    before = len(list(kept.iterdir()))
    command = [*_command(name), "-merge=1", "-max_len=512", f"-timeout={SECONDS_PER_INPUT}", str(kept), str(inputs)]
    subprocess.run(command, cwd=ROOT, env=_environment(), check=True, capture_output=True)
    files = list(kept.iterdir())
    print(f"{name}: {before} -> {len(files)} inputs, {sum(path.stat().st_size for path in files)} bytes")


if __name__ == "__main__":
    sys.exit(main())
