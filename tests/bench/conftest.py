"""The modules of bench/ are scripts beside each other, not a package: importable by their own names."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path += [str(BENCH), str(BENCH / "studies")]
