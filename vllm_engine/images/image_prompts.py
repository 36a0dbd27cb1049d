"""A prompt in which images have one token each -> the prompt that vLLM computes, by the model's own processor.

Images come from anywhere: a few formats alone are decoded, and how many pixels one has is read before it is.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image
from vllm.exceptions import VLLMClientError
from vllm.multimodal.media import ImageMediaIO
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from schedcore.api.types import ImageLimits

logger = logging.getLogger("vllm_engine")

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
LIMITS = ImageLimits(max_images=16, max_image_bytes=16 << 20, max_pixels=1 << 25)
_TASKS = ("generate",)


class GrownPrompt(NamedTuple):
    token_ids: list[int]  # an image has as many as the model computes for it
    features: list[Any]  # vLLM's MultiModalFeatureSpec of each image: pixels, place, hash of its content


class ImagePrompts:
    """One thread at a time."""

    def __init__(self, processor: Any, limits: ImageLimits = LIMITS) -> None:
        """processor: a vllm InputProcessor."""
        self._processor, self.limits = processor, limits
        self._reader = ImageMediaIO()

    def grow(self, token_ids: list[int], images: Sequence[bytes], adapter: Any = None) -> GrownPrompt:
        """images: encoded, in the order of their tokens. adapter: vLLM's LoRARequest. Raises ValueError: they cannot be
        read, are too large, or the prompt has no place for them."""
        pictures = [self._read(encoded) for encoded in images]
        prompt = {"prompt_token_ids": token_ids, "multi_modal_data": {"image": pictures}}
        try:
            return self._process(prompt, adapter)
        except VLLMClientError as error:  # no ValueError in 0.32
            raise ValueError(str(error)) from error
        except AssertionError as error:  # vLLM's, where an image is left over
            raise ValueError("the prompt has fewer places for images than there are images") from error

    def _process(self, prompt: dict[str, Any], adapter: Any) -> GrownPrompt:
        (rendered,) = self._processor.renderer.render_cmpl([prompt])
        if len(rendered["prompt_token_ids"]) >= self._processor.model_config.max_model_len:
            return GrownPrompt(rendered["prompt_token_ids"], [])  # too long, which the engine says by its own code
        made = self._processor.process_inputs("", rendered, SamplingParams(max_tokens=1), _TASKS, lora_request=adapter)
        return GrownPrompt(made.prompt_token_ids, made.mm_features or [])

    def _read(self, encoded: bytes) -> Any:
        try:
            with Image.open(io.BytesIO(encoded), formats=FORMATS) as header:
                width, height = header.size
        except Exception as error:  # by format, PIL raises whatever it comes across
            raise ValueError(f"an image is none of {', '.join(FORMATS)}, or damaged") from error
        if width * height > self.limits.max_pixels:
            raise ValueError(f"an image has {width} x {height} pixels; at most {self.limits.max_pixels} are taken")
        try:
            return self._reader.load_bytes(encoded)
        except Exception as error:
            raise ValueError(f"an image cannot be decoded: {error}") from error


def open_image_prompts(core: Any) -> ImagePrompts | None:
    """Of a vllm EngineCore. None: its model takes no images, or they cannot be served."""
    vllm_config = core.vllm_config
    model = vllm_config.model_config
    if not model.supports_multimodal_inputs or model.skip_tokenizer_init:
        return None
    if vllm_config.scheduler_config.disable_chunked_mm_input or model.is_mm_prefix_lm:
        logger.warning("no images: this model computes each whole, and our steps may end within one")
        return None
    processor = InputProcessor(vllm_config)
    logging.getLogger("vllm.v1.worker.cpu_worker").addFilter(_is_news)
    most = processor.renderer.get_mm_processor().info.allowed_mm_limits.get("image", 0)
    if most < 1:
        return None
    limits = ImageLimits(min(most, LIMITS.max_images), LIMITS.max_image_bytes, LIMITS.max_pixels)
    return ImagePrompts(processor, limits)


def _is_news(record: logging.LogRecord) -> bool:
    """vLLM on CPU warns twice for each image that its own processor may not set the threads."""
    return "set_num_threads" not in str(record.msg)
