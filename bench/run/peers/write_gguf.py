"""Writes the random models (bench/run/random_model.py) as GGUF files, for llama.cpp beside us on the same weights.

    python -m bench.run.peers.write_gguf models/random-100m --types BF16 Q8_0 Q4_0    # models/random-100m.Q8_0.gguf ...

Token ids in, token ids out: the files have no vocabulary.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import gguf
from safetensors.torch import load_file
from torch import Tensor

FIXED_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, stored_as: str) -> Path:
    """Beside the folder. stored_as: the type of its matrices, as gguf.GGMLQuantizationType names it."""
    config = json.loads((folder / "config.json").read_text())
    path = folder.with_name(f"{folder.name}.{stored_as}.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored = stored_name(name)
        kind = gguf.GGMLQuantizationType[stored_as if tensor.dim() == 2 else "F32"]
        num_heads = next((count for part, count in heads.items() if f".{part}." in stored), None)
        values = (tensor if num_heads is None else to_neighbours(tensor, num_heads)).float().numpy()
        writer.add_tensor(stored, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_name(name: str) -> str:
    if name in FIXED_NAMES:
        return FIXED_NAMES[name]
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_NAMES[part.removesuffix('.weight')]}.weight"


def to_neighbours(weight: Tensor, num_heads: int) -> Tensor:
    """llama.cpp rotates pairs that lie side by side, transformers those half a head apart."""
    return weight.view(num_heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--types", nargs="+", default=["BF16", "Q8_0", "Q4_0"])
    args = parser.parse_args(argv)
    for folder in args.folders:
        for stored_as in args.types:
            path = write_gguf(folder, stored_as)
            print(f"{path}: {path.stat().st_size / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
