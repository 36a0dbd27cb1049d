"""The tensors of a GGUF file by the names and in the layout that the same checkpoint has on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from schedcore.gguf.gguf_config import ROPE_FREQUENCIES
from schedcore.gguf.gguf_file import GgufError, GgufFile
from worker.base.errors import CheckpointError
from worker.models.model_config import ModelConfig
from worker.models.tensor_check import check_tensors

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IGNORED = frozenset({ROPE_FREQUENCIES})  # schedcore/gguf/gguf_config.py has read them
# Families of which llama.cpp rotates neighbours instead of halves; its rows of q and k are in another order for it.
_WITH_NEIGHBOURS = ("LlamaForCausalLM", "MistralForCausalLM")


class GgufTensors:
    """A TensorSource (loader.py), of which nothing needs to be closed."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        """Raises CheckpointError."""
        try:
            self._file = GgufFile(path)
        except GgufError as error:
            raise CheckpointError(str(error)) from None
        self._path, self._shapes = path, self._file.shapes()
        self._heads = {}
        if config.architecture in _WITH_NEIGHBOURS:
            self._heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}

    def __enter__(self) -> GgufTensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def check(self, expected: Mapping[str, tuple[int, ...]], is_ignorable: Callable[[str], bool]) -> None:
        """Raises CheckpointError naming what is missing, unexpected or of another shape than expected."""
        found = {_hub_name(name): shape for name, shape in self._shapes.items() if name not in IGNORED}
        check_tensors(self._path, found, expected, is_ignorable)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[_stored_name(name)]

    def read(self, name: str) -> Tensor:
        """float32. Raises CheckpointError."""
        try:
            values = torch.from_numpy(self._file.read(_stored_name(name)))
        except GgufError as error:
            raise CheckpointError(str(error)) from None
        found = _LAYER.fullmatch(name)
        num_heads = self._heads.get(found[2]) if found else None
        if num_heads is None:
            return values
        rows = values.view(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
        return rows.transpose(1, 2).reshape(values.shape)


def _stored_name(name: str) -> str:
    found = _LAYER.fullmatch(name)
    if found is None:
        return _OUTSIDE.get(name, name)
    return f"blk.{found[1]}.{_IN_LAYER.get(found[2], found[2])}.{found[3]}"


def _hub_name(name: str) -> str:
    outside = {stored: hub_name for hub_name, stored in _OUTSIDE.items()}
    if name in outside:
        return outside[name]
    parts = name.split(".")
    modules = {value: key for key, value in _IN_LAYER.items()}
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in modules:
        return f"model.layers.{parts[1]}.{modules[parts[2]]}.{parts[3]}"
    return name
