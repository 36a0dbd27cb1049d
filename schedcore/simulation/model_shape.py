"""What a model's shape says about memory and work. Numbers are from the models' published configurations."""

from __future__ import annotations

from dataclasses import dataclass

from schedcore._core import algorithms


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    has_gated_mlp: bool = True  # three matrices; two otherwise
    has_tied_embeddings: bool = False
    num_positions: int = 0  # rows of a learned position table
    bytes_per_value: int = 2  # weights and cache

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Of the matrices of one layer: what every token is multiplied with. Norms and biases are left out."""
        attention = self.hidden_size * self.head_dim * self.num_heads * 2 + self.hidden_size * self.kv_size * 2
        return attention + self.hidden_size * self.intermediate_size * (3 if self.has_gated_mlp else 2)

    @property
    def num_parameters(self) -> int:
        tables = self.vocab_size * (1 if self.has_tied_embeddings else 2) + self.num_positions
        return self.num_layers * self.layer_weights + tables * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        return self.num_parameters * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.kv_size * self.bytes_per_value

    @property
    def attention_width(self) -> int:
        """Over all layers and heads: attention work per pair of tokens is proportional to it."""
        return self.num_layers * self.num_heads * self.head_dim

    @property
    def projection_weights(self) -> int:
        """Of the matrices that turn the hidden cache into K and V, over all layers."""
        return 2 * self.num_layers * self.hidden_size * self.kv_size

    @property
    def hidden_ratio(self) -> float:
        """Eta: bytes of a token's hidden cache over those of its K and V."""
        return self.hidden_size / (2 * self.kv_size)

    @property
    def hidden_units_per_group(self) -> int:
        """Units of a hidden block per layer group; 0 where hidden states are no smaller than K and V."""
        units = -(-self.hidden_size // self.kv_size)
        return units if units < 2 else 0

    def step_costs(self, flops_per_second: float = 150e12, bytes_per_second: float = 1.3e12) -> algorithms.StepCosts:
        """For the b/r solver. The rates are what an A100 reaches of its 312 TFLOP/s and 1.56 to 2.0 TB/s."""
        workspace = 2 * self.kv_size * self.bytes_per_value  # K and V of one layer at a time
        return algorithms.StepCosts(
            "roofline",
            flops_per_token=2.0 * self.num_layers * self.layer_weights,
            flops_per_pair=4.0 * self.attention_width,
            flops_per_logit=2.0 * self.hidden_size * self.vocab_size,
            flops_per_second=flops_per_second,
            weight_bytes=float(self.num_layers * self.layer_weights * self.bytes_per_value),
            head_bytes=float(self.hidden_size * self.vocab_size * self.bytes_per_value),
            kv_bytes_per_token=float(self.kv_bytes_per_token),
            workspace_bytes_per_token=float(workspace),
            bytes_per_second=bytes_per_second,
        )

    def unit_bytes(self, block_size: int, layers_per_unit: int) -> int:
        return block_size * layers_per_unit * self.kv_size * self.bytes_per_value

    def num_units(self, cache_bytes: int, block_size: int, layers_per_unit: int) -> int:
        return cache_bytes // self.unit_bytes(block_size, layers_per_unit)


def _llama(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    context: int,
    *,
    head_dim: int | None = None,
    is_tied: bool = False,
) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate_size=intermediate,
        vocab_size=vocab,
        max_model_len=context,
        has_tied_embeddings=is_tied,
    )


def _opt(name: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        vocab_size=50272,
        max_model_len=2048,
        has_gated_mlp=False,
        has_tied_embeddings=True,
        num_positions=2050,
    )


MODEL_SHAPES = {
    shape.name: shape
    for shape in (
        _opt("opt-13b", 40, 5120, 40),
        _opt("opt-30b", 48, 7168, 56),
        _opt("opt-66b", 64, 9216, 72),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 8192),
        _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 32768),
        _llama("qwen3-0.6b", 28, 1024, 16, 8, 3072, 151936, 40960, head_dim=128, is_tied=True),
        _llama("qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 40960, head_dim=128),
    )
}


def model_shape(name: str) -> ModelShape:
    """Raises ValueError."""
    shape = MODEL_SHAPES.get(name.lower())
    if shape is None:
        raise ValueError(f"there is no model shape {name!r}; known: {', '.join(MODEL_SHAPES)}")
    return shape
