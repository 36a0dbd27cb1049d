"""Installs hocket and its dependencies into this environment, and shows how far it is.

    .venv/bin/python tools/build.py [--cuda auto|1|0] [--twins]

pip is silent for the minutes that it takes to download PyTorch and to compile. This passes on the lines that say what
is downloaded and which step of how many is compiled, each with the seconds since the start; everything else goes to
build/build.log, whose end is shown if the build fails. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "build/build.log"
NUM_LINES_OF_A_FAILURE = 60
CUDA = {"auto": "AUTO", "1": "ON", "0": "OFF"}
_WORTH_SHOWING = (
    (re.compile(r"^\s*(Downloading \S+ \([^)]*\))"), r"\1"),
    (
        re.compile(r"^\s*(\[\d+/\d+\]) Building \w+ object .*/(\w+)\.dir/(?:.*/)?(?:unity_)?(\w+?)(?:_cxx)?\.\w+\.o$"),
        r"\1 \2: \3",
    ),
    (re.compile(r"^\s*(\[\d+/\d+\]) Linking .* (?:.*/)?([\w.-]+)$"), r"\1 \2"),
    (re.compile(r"^\s*(?:-- )?(CUDA kernels: .*)"), r"\1"),
    (re.compile(r"^\s*(Installing collected packages).*"), r"\1"),
)


def progress(line: str) -> str | None:
    """What is shown of a line of pip's or ninja's; None: nothing."""
    for pattern, shown in _WORTH_SHOWING:
        if match := pattern.match(line.rstrip()):
            return match.expand(shown)
    return None


def pip_command(cuda: str, has_twins: bool) -> list[str]:
    definitions = {"HOCKET_CUDA": CUDA[cuda], "HOCKET_KERNEL_TWINS": "ON" if has_twins else "OFF"}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-v", "--progress-bar", "off"]
    command += [f"-Ccmake.define.{name}={value}" for name, value in definitions.items()]
    return [*command, "-c", "constraints.txt", "--no-build-isolation", "-e", "client", "-e", "."]


def shown(lines: Iterable[str]) -> Iterator[str]:
    """Every line worth showing, once in a row, behind the seconds since the first."""
    start, last = time.monotonic(), None
    for line in lines:
        text = progress(line)
        if text is not None and text != last:
            yield f"{time.monotonic() - start:5.0f} s  {text}"
            last = text


def run(command: list[str]) -> int:
    """The command's exit status; its output goes to LOG."""
    LOG.parent.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    tail: collections.deque[str] = collections.deque(maxlen=NUM_LINES_OF_A_FAILURE)
    pipe = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with LOG.open("w") as log, pipe as process:

        def kept() -> Iterator[str]:
            for line in process.stdout or ():
                log.write(line)
                tail.append(line)
                yield line

        for text in shown(kept()):
            print(text, flush=True)
    if process.returncode:
        print("".join(tail), f"The build failed; all of its output is in {LOG}.", sep="", file=sys.stderr)
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", choices=CUDA, default="auto", help="CUDA kernels: where there is a device, yes or no")
    parser.add_argument("--twins", action="store_true", help="also kernels that only tests use")
    options = parser.parse_args()
    return run(pip_command(options.cuda, options.twins))


if __name__ == "__main__":
    sys.exit(main())
