"""Makes an environment with the packages of an extra (pyproject.toml) for its tests; the rest is that of this tree.

    python3 tools/extra_env.py EXTRA DIR VENV    # VENV: where this package and its tests' tools are installed

`ray` (make test-ray): half a minute and 400 MB. `nixl` (make test-nixl): 270 MB, and no CUDA build of PyTorch beside
the one in VENV. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALONE = {"nixl"}  # needs torch and numpy, any of which will do


def main() -> int:
    extra = sys.argv[1]
    folder, base = (Path(argument).absolute() for argument in sys.argv[2:4])
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    content = f"{packages}, Python {sys.version}, beside {base}\n"
    marker = folder / ".environment"
    if not marker.is_file() or marker.read_text() != content:
        venv.create(folder, with_pip=True, clear=True)
        command = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*command, *(["--no-deps"] if extra in ALONE else []), *packages], check=True)
        _look_into(folder, base)
        marker.write_text(content)
    (folder / ".built").touch()
    return 0


def _look_into(folder: Path, base: Path) -> None:
    """What is not found here is found there, its editable packages included."""
    packages, others = (next((where / "lib").glob("python3.*/site-packages")) for where in (folder, base))
    (packages / "hocket_base.pth").write_text(f"import site; site.addsitedir({str(others)!r})\n")


if __name__ == "__main__":
    sys.exit(main())
