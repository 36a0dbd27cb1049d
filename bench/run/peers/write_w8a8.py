"""Writes the random models with weights in int8 as compressed-tensors has them, activations to be rounded per token:
what vLLM computes in int8, for its own int8 beside ours.

    python -m bench.run.peers.write_w8a8 models/random-100m    # models/random-100m-w8a8
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

SCHEME = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**SCHEME, "strategy": "channel", "dynamic": False},
            "input_activations": {**SCHEME, "strategy": "token", "dynamic": True},
        }
    },
}


def write_w8a8(folder: Path) -> Path:
    """Beside the folder."""
    to = folder.with_name(f"{folder.name}-w8a8")
    shutil.copytree(folder, to, dirs_exist_ok=True)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        scale = tensor.float().abs().amax(dim=1, keepdim=True) / 127
        tensors[name] = (tensor.float() / scale).round().clamp(-127, 127).to(torch.int8)
        tensors[name + "_scale"] = scale.to(tensor.dtype)
    save_file(tensors, to / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTIZATION}, indent=2))
    return to


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args(argv).folders:
        print(write_w8a8(folder))


if __name__ == "__main__":
    main()
