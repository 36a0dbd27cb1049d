"""Hugging Face directory, or one made of a GGUF file -> DecoderModel, tensor by tensor into its final layout.

At any time at most one fused weight exists beside the finished part of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from schedcore.gguf.gguf_folder import LINK as GGUF_LINK
from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.batch.host_memory import HugePageMemory
from worker.models.decoder import DecoderLayer, DecoderModel, OutputHead
from worker.models.gguf_tensors import GgufTensors
from worker.models.layers.attention import Attention
from worker.models.layers.embedding import Embedding
from worker.models.layers.linear import Linear, make_linear
from worker.models.layers.mlp import MLP
from worker.models.layers.norm import LayerNorm, NoNorm, Norm, RMSNorm
from worker.models.layers.rope import rope_table
from worker.models.model_config import ModelConfig
from worker.models.quantized.product_forms import OWN_FORMS, ProductForms
from worker.models.quantized.quantized_tensors import QuantizedTensors
from worker.models.tensor_files import TensorFiles
from worker.models.weight_names import LEARNED_POSITION_OFFSET, expected_shapes, is_ignorable, weight_names
from worker.ops.weights.rounded_weight import RoundedWeight, stacked

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Progress = Callable[[int, int], None]  # tensors read so far, of how many


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    device: torch.device | None = None,
    max_positions: int | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[DecoderModel, torch.dtype]:
    """The model and the dtype of its weights and cache.

    quantization: of all products (worker/ops/weights/packed_linear.py), on CPU only. max_positions bounds the table of
    rotations.
    Raises CheckpointError, UnsupportedModelError.
    """
    expected = expected_shapes(config)
    with _open(folder, config) as checkpoint:
        checkpoint.check(expected, lambda name: is_ignorable(name, config))
        weight_dtype = _resolve_dtype(dtype, config, checkpoint)
        builder = _Builder(
            config, checkpoint, weight_dtype, quantization, device or torch.device("cpu"), progress, len(expected)
        )
        model = builder.model(min(max_positions or config.max_positions, config.max_positions))
        if isinstance(checkpoint, QuantizedTensors):
            builder.products.log(checkpoint.method, weight_dtype)
        return model, weight_dtype


def _open(folder: Path, config: ModelConfig) -> TensorFiles | GgufTensors | QuantizedTensors:
    """Raises CheckpointError."""
    file = folder / GGUF_LINK
    if file.exists():
        return GgufTensors(file, config)
    if config.quantization is not None:
        return QuantizedTensors(folder, config.quantization, expected_shapes(config))
    return TensorFiles(folder)


def _resolve_dtype(dtype: str, config: ModelConfig, checkpoint: TensorSource) -> torch.dtype:
    if dtype == "auto":
        embedding = checkpoint.read(f"{weight_names(config).embed}.weight")
        dtype = config.dtype or str(embedding.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UnsupportedModelError(f"dtype {dtype} is not supported; supported: {', '.join(DTYPES)}")
    return DTYPES[dtype]


class TensorSource(Protocol):
    """What a model is built from, by the names of a checkpoint."""

    def shape(self, name: str) -> tuple[int, ...]: ...
    def read(self, name: str) -> Tensor:
        """On any device; used before the next is read."""


def build_model(
    config: ModelConfig, source: TensorSource, dtype: torch.dtype, device: torch.device, max_positions: int
) -> DecoderModel:
    """Weights from anywhere. max_positions: rows of the table of rotations."""
    num_tensors = len(expected_shapes(config))
    return _Builder(config, source, dtype, None, device, lambda done, total: None, num_tensors).model(max_positions)


class _Builder:
    """Reads each tensor once, in the order of the network."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: TensorSource,
        weight_dtype: torch.dtype,
        quantization: str | None,
        device: torch.device,
        progress: Progress,
        num_tensors: int,
    ) -> None:
        self._config, self._checkpoint, self._device = config, checkpoint, device
        self._names = weight_names(config)
        self._weight_dtype = weight_dtype
        self._quantization, self._memory = quantization, HugePageMemory()
        self._rounded = checkpoint if isinstance(checkpoint, QuantizedTensors) else None
        self.products = ProductForms()
        self._activation_dtype = torch.float32 if device.type == "cpu" else weight_dtype
        self._progress, self._num_read, self._num_tensors = progress, 0, num_tensors

    def model(self, max_positions: int) -> DecoderModel:
        config, names = self._config, self._names
        embedding = self._embedding()
        cos_sin = None
        if config.rope is not None:
            cos_sin = rope_table(config.rope, config.head_dim, max_positions).to(self._device)
        layers = [self._layer(index, cos_sin) for index in range(config.num_layers)]
        final_norm = self._norm(names.final_norm) if config.has_final_norm else NoNorm()
        return DecoderModel(config, embedding, layers, final_norm, self._head())

    def _embedding(self) -> Embedding:
        config, names = self._config, self._names
        tokens = self._weight(names.embed)
        if config.rope is not None:
            return Embedding(tokens, self._activation_dtype)
        project = self._linear(names.project_in) if config.embed_size != config.hidden_size else None
        positions = self._vector(f"{names.positions}.weight")
        return Embedding(tokens, self._activation_dtype, positions, LEARNED_POSITION_OFFSET, project)

    def _head(self) -> OutputHead:
        config, names = self._config, self._names
        project = self._linear(names.project_out) if config.embed_size != config.hidden_size else None
        return OutputHead(project, self._linear(names.embed if config.is_tied else names.lm_head))

    def _layer(self, index: int, cos_sin: Tensor | None) -> DecoderLayer:
        config, names = self._config, self._names
        prefix = names.layer.format(index)
        attention = Attention(
            layer=index,
            qkv=self._linear(*(prefix + name for name in (names.q, names.k, names.v)), has_bias=config.has_qkv_bias),
            output=self._linear(prefix + names.output, has_bias=config.has_output_bias),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            cos_sin=cos_sin,
            sliding_window=config.sliding_windows[index],
            qk_norms=self._qk_norms(prefix) if config.has_qk_norm else None,
        )
        is_gated = config.activation == "silu"
        mlp = MLP(
            self._linear(*(prefix + name for name in names.up), has_bias=config.has_mlp_bias, is_gated=is_gated),
            self._linear(prefix + names.down, has_bias=config.has_mlp_bias),
            None if is_gated else config.activation,
        )
        attention_norm, mlp_norm = self._norm(prefix + names.attention_norm), self._norm(prefix + names.mlp_norm)
        return DecoderLayer(attention_norm, attention, mlp_norm, mlp)

    def _norm(self, name: str) -> Norm:
        config = self._config
        if config.is_rms_norm:
            return RMSNorm(self._vector(f"{name}.weight"), config.norm_eps)
        weight = self._vector(f"{name}.weight") if config.has_norm_weights else None
        bias = self._vector(f"{name}.bias") if config.has_norm_weights else None
        return LayerNorm(config.hidden_size, weight, bias, config.norm_eps)

    def _qk_norms(self, prefix: str) -> tuple[RMSNorm, RMSNorm]:
        q, k = (self._vector(f"{prefix}{name}.weight") for name in (self._names.q_norm, self._names.k_norm))
        return RMSNorm(q, self._config.norm_eps), RMSNorm(k, self._config.norm_eps)

    def _linear(self, *modules: str, has_bias: bool = False, is_gated: bool = False) -> Linear:
        """Modules that read the same input, fused: their outputs follow each other, or the first gates the second."""
        bias = torch.cat([self._vector(f"{module}.bias") for module in modules]) if has_bias else None
        rounded = self._integers(*modules)
        weight = self._weight(*modules) if rounded is None else rounded
        return make_linear(weight, bias, is_gated=is_gated, quantization=self._quantization, memory=self._memory)

    def _integers(self, *modules: str) -> RoundedWeight | None:
        """The modules' weights stacked as the checkpoint rounded them, where that is a form of ours. On CPU only."""
        if self._rounded is None or self._device.type != "cpu":
            return None
        weights = [weight for weight in map(self._rounded.integers, modules) if weight is not None]
        if not weights:
            return None
        wanted = OWN_FORMS if self._quantization is None else (self._quantization,)
        found = (stacked(weights, form) for form in wanted) if len(weights) == len(modules) else ()
        rounded = next((form for form in found if form is not None), None)
        self.products.count(rounded)
        if rounded is not None:
            for module, weight in zip(modules, weights, strict=True):
                _check_finite(weight.scales, f"{module}: scales")
                self._count()
        return rounded

    def _weight(self, *modules: str) -> Tensor:
        """The modules' weights stacked, [sum of out_features, in_features], in the weight dtype on the device.

        What a checkpoint has rounded is not rounded to the weight dtype before it is rounded again.
        """
        shapes = [self._checkpoint.shape(f"{module}.weight") for module in modules]
        is_exact = self._rounded is not None and self._quantization is not None
        dtype = torch.float32 if is_exact else self._weight_dtype
        fused = torch.empty(sum(s[0] for s in shapes), shapes[0][1], dtype=dtype, device=self._device)
        for part, module in zip(fused.split_with_sizes([s[0] for s in shapes]), modules, strict=True):
            part.copy_(self._read(f"{module}.weight"))
            _check_finite(part, f"{module}.weight")
        return fused

    def _vector(self, name: str) -> Tensor:
        """A small tensor in the dtype of the activations, independent of the file."""
        vector = self._read(name).to(device=self._device, dtype=self._activation_dtype, copy=True)
        _check_finite(vector, name)
        return vector

    def _read(self, name: str) -> Tensor:
        tensor = self._checkpoint.read(name)
        if not tensor.is_floating_point():
            raise CheckpointError(f"{name} has dtype {tensor.dtype}; weights must be floating point")
        self._count()
        return tensor

    def _count(self) -> None:
        self._num_read = min(self._num_read + 1, self._num_tensors)  # a tied embedding is read twice
        self._progress(self._num_read, self._num_tensors)


def _check_finite(tensor: Tensor, name: str) -> None:
    """As it is computed with: a dtype with less range makes infinities. Minimum and maximum show NaN, too."""
    if tensor.numel() and not all(bool(bound.isfinite()) for bound in torch.aminmax(tensor)):
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{name} holds numbers that are not finite (NaN or infinity) in {dtype}: the checkpoint is damaged, or "
            "needs a dtype with more range (bfloat16 or float32)"
        )
