"""A model that reads images, Idefics 3's architecture with random weights, and images for it.

Of what vLLM can run without torchvision, which has no CPU build. An image takes 7 tokens, or some 40 where it is wide
and cut into tiles.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

NAME = "idefics3"
DEMO = Path(__file__).resolve().parents[2] / "worker/demo_model"
IMAGE_TOKEN = 1024  # the first behind the demo model's
_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_ADDED = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *_TILES]
# As SmolVLM's, which reads content in parts alone and knows no tools.
_TEMPLATE = (
    "<|begin|>{% for message in messages %}{{ message['role'] | capitalize }}: {% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
_PIXELS = {
    "image_processor_type": "Idefics3ImageProcessor",
    "processor_class": "Idefics3Processor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"longest_edge": 64},
    "resample": 1,
    "do_image_splitting": True,
    "max_image_size": {"longest_edge": 32},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "do_pad": True,
}


def write_image_model(folder: Path, text: dict[str, Any]) -> Path:
    """text: fields of the language model's configuration."""
    vocab_size = IMAGE_TOKEN + len(_ADDED)
    torch.manual_seed(0)
    config = transformers.Idefics3Config(
        text_config=text | {"vocab_size": vocab_size, "initializer_range": 0.2, "model_type": "llama"},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "initializer_range": 0.2,
        },
        scale_factor=2,
        image_token_id=IMAGE_TOKEN,
        pad_token_id=0,
    )
    config.initializer_range = 0.2
    transformers.Idefics3ForConditionalGeneration(config).float().save_pretrained(folder)
    written = _read(folder / "config.json") | {"torch_dtype": "float32", "vocab_size": vocab_size}
    _write(folder / "config.json", written)
    _write(folder / "preprocessor_config.json", _PIXELS)
    _write(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": 4})
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    tokenizer = _read(DEMO / "tokenizer.json")
    for i, content in enumerate(_ADDED):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": IMAGE_TOKEN + i, "content": content, **flags, "special": True})
    _write(folder / "tokenizer.json", tokenizer)
    names = {
        "image_token": "<image>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "end_of_utterance_token": "<end_of_utterance>",
        "chat_template": _TEMPLATE,
    }
    _write(folder / "tokenizer_config.json", _read(DEMO / "tokenizer_config.json") | names)


def image(seed: int, width: int = 60, height: int = 40, kind: str = "PNG") -> bytes:
    """Noise, as a file."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def image_part(seed: int, **fields: Any) -> dict[str, Any]:
    """Of a chat's message."""
    encoded = base64.b64encode(image(seed, **fields)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=1))
