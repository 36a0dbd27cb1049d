"""The demo model's files, in Hugging Face's directory layout: tokenizer, chat template, configuration, weights."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.demo_model.network import Decoder, Shape

PAD, BEGIN, SYSTEM, USER, ASSISTANT, END = SPECIALS = (
    "<|pad|>", "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    # tools, as transformers passes them, each in a line: name(parameter: type, optional?: one|other) description
    "{%- if tools %}{{- '<|system|>Tools:' }}"
    "{%- for tool in tools %}{%- set function = tool.function or tool %}"
    "{%- set schema = function.parameters or {} %}"
    "{{- '\n' ~ function.name ~ '(' }}"
    "{%- for name, kind in (schema.properties or {}) | items %}"
    "{{- ', ' if not loop.first }}{{- name ~ ('' if name in (schema.required or []) else '?') ~ ': ' }}"
    "{{- kind.enum | join('|') if kind.enum else kind.type if kind.type is string else 'any' }}"
    "{%- endfor %}{{- ')' }}"
    "{%- if function.description %}{{- ' ' ~ (function.description | trim).split('\n')[0] }}{%- endif %}"
    "{%- endfor %}{{- eos_token }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- set role = 'system' if message['role'] == 'developer' else message['role'] %}"
    "{%- if role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{- raise_exception('The demo model knows tool results and the roles system, user and assistant, not ' ~ role) }}"
    "{%- endif %}"
    "{{- '<|user|><tool_response>' if role == 'tool' else '<|' ~ role ~ '|>' }}"
    "{%- if message['content'] is string %}{{- message['content'] | trim }}"
    "{%- elif message['content'] %}"
    "{%- for part in message['content'] if part['type'] == 'text' %}{{- part['text'] }}{%- endfor %}"
    "{%- endif %}"
    "{%- for call in message.tool_calls or [] %}{%- set function = call.function or call %}"
    "{%- set arguments = function.arguments %}"
    "{{- '\n' if message['content'] or not loop.first }}"
    "{{- '<tool_call>\n{\"name\": ' ~ (function.name | tojson) ~ ', \"arguments\": ' }}"
    "{{- (arguments if arguments is string else arguments | tojson) ~ '}\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '</tool_response>' if role == 'tool' }}"
    "{{- eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)

Message = dict[str, Any]
"""In OpenAI's shape, with its calls' arguments as objects."""


def render(messages: Iterable[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
    """What `CHAT_TEMPLATE` makes of them, without jinja in the training loop; a test holds them together."""
    offered = f"{SYSTEM}Tools:" + "".join(f"\n{_signature(tool['function'])}" for tool in tools) + END
    return BEGIN + (offered if tools else "") + "".join(_rendered(message) for message in messages)


def _signature(function: dict[str, Any]) -> str:
    schema = function["parameters"]
    parameters = ", ".join(
        f"{name}{'' if name in schema['required'] else '?'}: {'|'.join(kind.get('enum', ())) or kind['type']}"
        for name, kind in schema["properties"].items()
    )
    return f"{function['name']}({parameters}) {function['description']}"


def _rendered(message: Message) -> str:
    if message["role"] == "tool":
        return f"{USER}<tool_response>{message['content'].strip()}</tool_response>{END}"
    said = message["content"].strip() or written_calls(message.get("tool_calls", ()))
    return f"<|{message['role']}|>{said}{END}"


def written_calls(calls: Iterable[dict[str, Any]]) -> str:
    """As the model writes them; the format that gateway/tools calls hermes."""
    return "\n".join(f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls)


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
