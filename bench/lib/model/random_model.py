"""Random-weight Llama checkpoints in Hugging Face format, for speed measurements without a download.

The weights mean nothing, but they are scaled so that activations keep their size from layer to layer and logits
are about N(0, 1): decoding is numerically as ordinary as a trained model's. The tokenizer is a byte-level BPE whose
merges are enumerated, not learned, so that the vocabulary has exactly the model's size.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
UNK_ID, BOS_ID, EOS_ID = range(3)
MAX_POSITIONS = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes that decide what a step costs. Embeddings are not tied."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int = 8192

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def tensor_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of the checkpoint: (name, shape), linear weights as [out_features, in_features]."""
        hidden, kv_size = self.hidden_size, self.num_kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            yield prefix + "input_layernorm.weight", (hidden,)
            yield prefix + "self_attn.q_proj.weight", (hidden, hidden)
            yield prefix + "self_attn.k_proj.weight", (kv_size, hidden)
            yield prefix + "self_attn.v_proj.weight", (kv_size, hidden)
            yield prefix + "self_attn.o_proj.weight", (hidden, hidden)
            yield prefix + "post_attention_layernorm.weight", (hidden,)
            yield prefix + "mlp.gate_proj.weight", (self.intermediate_size, hidden)
            yield prefix + "mlp.up_proj.weight", (self.intermediate_size, hidden)
            yield prefix + "mlp.down_proj.weight", (hidden, self.intermediate_size)
        yield "model.norm.weight", (hidden,)
        yield "lm_head.weight", (self.vocab_size, hidden)

    def num_parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensor_shapes())


SHAPES = {
    "15m": LlamaShape(hidden_size=256, num_layers=6, num_heads=8, num_kv_heads=4, intermediate_size=2048),
    "100m": LlamaShape(hidden_size=768, num_layers=12, num_heads=12, num_kv_heads=12, intermediate_size=2048),
    "0.5b": LlamaShape(hidden_size=896, num_layers=24, num_heads=14, num_kv_heads=2, intermediate_size=4864),
}


def random_weights(shape: LlamaShape, seed: int) -> dict[str, torch.Tensor]:
    """bfloat16 tensors by checkpoint name. What writes into the residual stream is damped by 1/sqrt(2 L)."""
    generator = torch.Generator().manual_seed(seed)
    damping = 1 / math.sqrt(2 * shape.num_layers)
    weights = {}
    for name, size in shape.tensor_shapes():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(size, dtype=torch.bfloat16)
            continue
        std = 1.0 if name.startswith("model.embed_tokens") else 1 / math.sqrt(size[-1])
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            std *= damping
        weights[name] = (torch.randn(size, generator=generator) * std).to(torch.bfloat16)
    return weights


def enumerated_merges(num_merges: int) -> list[tuple[str, str]]:
    """BPE merges in rank order: all letter pairs, letters after a space, then pairs extended by a letter."""
    letters = string.ascii_lowercase
    space = "\u0120"  # how byte-level BPE writes a blank
    pairs = list(itertools.product(letters, letters))
    merges = itertools.chain(
        pairs,
        ((space, letter) for letter in letters),
        ((first + second, third) for third in letters for first, second in pairs),
    )
    chosen = list(itertools.islice(merges, num_merges))
    if len(chosen) < num_merges:
        raise ValueError(f"only {len(chosen)} merges can be enumerated, {num_merges} asked for")
    return chosen


def byte_level_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer with exactly `vocab_size` tokens: the special tokens, 256 bytes, merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = enumerated_merges(vocab_size - len(SPECIAL_TOKENS) - len(alphabet))
    tokens = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def config_json(shape: LlamaShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": MAX_POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": SPECIAL_TOKENS[UNK_ID],
    "bos_token": SPECIAL_TOKENS[BOS_ID],
    "eos_token": SPECIAL_TOKENS[EOS_ID],
    "model_max_length": MAX_POSITIONS,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def write_checkpoint(folder: Path, shape: LlamaShape, seed: int = 0) -> None:
    """Write a complete checkpoint folder; a folder that exists afterwards is complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(random_weights(shape, seed), str(partial / "model.safetensors"), metadata={"format": "pt"})
    documents = {
        "config.json": config_json(shape),
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "do_sample": False},
        "tokenizer_config.json": TOKENIZER_CONFIG,
    }
    for name, document in documents.items():
        (partial / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    byte_level_tokenizer(shape.vocab_size).save(str(partial / "tokenizer.json"))
    partial.rename(folder)


def ensure_checkpoint(name: str, models_folder: Path) -> Path:
    """The folder of the random model `name` (a key of SHAPES), made first if it is not there."""
    folder = models_folder / f"random-{name}"
    if not (folder / "config.json").exists():
        write_checkpoint(folder, SHAPES[name])
    return folder
