"""Checkpoints of a few hundred kilobytes with random weights, one per family, with the demo model's tokenizer.

python -m fakes.tiny_families DIR [FAMILY ...]        # needs transformers
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from fakes import tiny_image_model

DEMO = Path(__file__).resolve().parents[2] / "worker/demo_model"
_TEXT = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 5,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
# Class of the configuration, class of the model, fields beside those of _TEXT.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "qwen3-moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _EXPERTS),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"sliding_window": 32, "num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
    "gpt-oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            "sliding_window": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "jamba": (
        "JambaConfig",
        "JambaForCausalLM",
        {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 16,
            "use_mamba_kernels": False,
        },
    ),
    "falcon-h1": (
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1},
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {
            **_EXPERTS,
            "shared_expert_intermediate_size": 64,
            "num_hidden_layers": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 128,  # the only size that vLLM's kernels take
            "linear_value_head_dim": 128,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        },
    ),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {}),
    "granite-moe-hybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            "num_local_experts": 0,
            "shared_intermediate_size": 128,
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "layer_types": ["mamba", "attention"],
        },
    ),
}


def write_family(name: str, folder: Path) -> Path:
    """Weights wide enough that answers differ. Raises KeyError: no such family."""
    if name == tiny_image_model.NAME:
        return tiny_image_model.write_image_model(folder, _TEXT)
    of_config, of_model, fields = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, of_config)(**{**_TEXT, "initializer_range": 0.2, **fields})
    model = getattr(transformers, of_model)(config).float()
    model.save_pretrained(folder, safe_serialization=True)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"torch_dtype": "float32"}, indent=1))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    return folder


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names or [*FAMILIES, tiny_image_model.NAME]:
        write_family(name, Path(folder) / name)


if __name__ == "__main__":
    main()
