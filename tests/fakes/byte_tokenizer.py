"""A tokenizer whose tokens are bytes, and a checkpoint directory around it: enough for a gateway, no weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = 256
SPECIAL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")  # ids 256 and on
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Token id = byte value; special tokens follow."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE({characters[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def write_byte_checkpoint(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB_SIZE, "eos_token_id": END}
    for name, content in (("config", config), ("tokenizer_config", tokenizer_config)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def tokens_of(text: str) -> list[int]:
    return list(text.encode())
