"""The demo model's files, in Hugging Face's directory layout: tokenizer, chat template, configuration, weights."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.demo_model.network import Decoder, Shape

PAD, BEGIN, SYSTEM, USER, ASSISTANT, END = SPECIALS = (
    "<|pad|>", "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- set role = 'system' if message['role'] == 'developer' else message['role'] %}"
    "{%- if role not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('The demo model knows the roles system, user and assistant, not ' ~ role) }}"
    "{%- endif %}"
    "{{- '<|' ~ role ~ '|>' }}"
    "{%- if message['content'] is string %}{{- message['content'] | trim }}"
    "{%- elif message['content'] %}"
    "{%- for part in message['content'] if part['type'] == 'text' %}{{- part['text'] }}{%- endfor %}"
    "{%- endif %}"
    "{{- eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def render(messages: Iterable[dict[str, str]]) -> str:
    """What `CHAT_TEMPLATE` makes of `messages`, without jinja in the training loop; a test holds them together."""
    return BEGIN + "".join(f"<|{m['role']}|>{m['content'].strip()}{END}" for m in messages)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every byte is a token, so any text survives the round trip; every digit stands alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(directory: Path, network: Decoder, tokenizer: Tokenizer) -> None:
    """Writes everything but the model card; the weights are rounded to bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    weights = {f"model.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in network.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in _json_files(network.shape, tokenizer).items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def _json_files(shape: Shape, tokenizer: Tokenizer) -> dict[str, dict[str, object]]:
    ids = {
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **asdict(shape), **ids, "attention_bias": False,
        "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
        "mlp_bias": False, "rope_scaling": None,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    }  # fmt: skip
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": PAD,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT], "clean_up_tokenization_spaces": False,
        "model_max_length": shape.max_position_embeddings, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    return {
        "config.json": config,
        "generation_config.json": {**ids, "do_sample": True, "temperature": 0.3},
        "tokenizer_config.json": tokenizer_config,
    }
