"""Makes an environment with Ray for `make test-ray`: Ray and what it needs, the rest is that of this tree.

    python3 tools/ray_env.py DIR VENV    # VENV: where this package and its tests' tools are installed

Half a minute and 400 MB. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    folder, base = (Path(argument).absolute() for argument in sys.argv[1:3])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    content = f"{extras['ray']}, Python {sys.version}, beside {base}\n"
    marker = folder / ".environment"
    if not marker.is_file() or marker.read_text() != content:
        venv.create(folder, with_pip=True, clear=True)
        command = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*command, *extras["ray"]], check=True)
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
