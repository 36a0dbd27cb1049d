"""Writes checkpoints with random weights (bench/lib/model/random_model.py), for speed measurements without a download.

python -m bench.run.random_model 15m 100m        # writes models/random-15m, models/random-100m
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.lib.model.random_model import SHAPES, ensure_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description="Write random-weight Llama checkpoints.")
    parser.add_argument("shapes", nargs="+", choices=SHAPES, help="which shapes to write")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder to write into (default: models)")
    arguments = parser.parse_args()
    for name in arguments.shapes:
        folder = ensure_checkpoint(name, arguments.models)
        print(f"{folder}: {SHAPES[name].num_parameters() / 1e6:.1f} M parameters, bfloat16")


if __name__ == "__main__":
    main()
