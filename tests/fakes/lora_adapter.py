"""A LoRA adapter with random weights over a checkpoint, and that checkpoint with the adapter in its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 4, 8
TARGETS = ("q_proj", "v_proj", "down_proj")


def write_adapter(model: Path, folder: Path, merged: Path, seed: int = 0) -> None:
    """`folder` is the adapter in PEFT's format, `merged` the model with it, both in float32."""
    draw = torch.Generator().manual_seed(seed)
    weights = {name: weight.float() for name, weight in load_file(model / "model.safetensors").items()}
    adapter: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if not module.endswith(TARGETS):
            continue
        down = torch.randn(RANK, weight.shape[1], generator=draw) / weight.shape[1] ** 0.5
        up = torch.randn(weight.shape[0], RANK, generator=draw) * weight.std()
        adapter |= {f"base_model.model.{module}.lora_A.weight": down, f"base_model.model.{module}.lora_B.weight": up}
        weights[name] = weight + ALPHA / RANK * up @ down
    folder.mkdir(parents=True)
    save_file(adapter, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": list(TARGETS)}))
    shutil.copytree(model, merged, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, merged / "model.safetensors")
