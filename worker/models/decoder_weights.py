"""A decoder's weights as ops.make_decoder_step() takes them: the whole model in one native call."""

from __future__ import annotations

from worker import ops
from worker.models.decoder import DecoderLayer, DecoderModel
from worker.models.layers.linear import Linear, PackedLinear
from worker.models.layers.norm import Norm, RMSNorm
from worker.ops.weights import packed_linear
from worker.ops.weights.step_weights import DecoderWeights, LayerWeights


def decoder_weights(model: DecoderModel) -> DecoderWeights | None:
    """None where a part of the model has no native form: it then runs layer by layer, in worker/models/decoder.py."""
    config, head = model.config, model.head.vocabulary
    is_native = config.is_rms_norm and config.is_norm_first and config.activation == "silu" and config.rope is not None
    if not is_native or not isinstance(head, PackedLinear) or not ops.has_decoder_step(head.packed):
        return None
    cos_sin = model.layers[0].attention.cos_sin
    assert cos_sin is not None
    return DecoderWeights(
        embedding=model.embedding.tokens,
        cos_sin=cos_sin,
        layers=[_layer_weights(layer) for layer in model.layers],
        final_norm=_norm(model.final_norm).weight,
        head=head.packed,
        num_heads=config.num_heads,
        norm_eps=config.norm_eps,
    )


def _layer_weights(layer: DecoderLayer) -> LayerWeights:
    attention = layer.attention
    norms = attention.norms
    return LayerWeights(
        attention_norm=_norm(layer.attention_norm).weight,
        qkv=_packed(attention.qkv),
        q_norm=None if norms is None else norms.q,
        k_norm=None if norms is None else norms.k,
        output=_packed(attention.output),
        sliding_window=attention.sliding_window,
        mlp_norm=_norm(layer.mlp_norm).weight,
        gate_up=_packed(layer.mlp.up),
        down=_packed(layer.mlp.down),
    )


def _packed(linear: Linear) -> packed_linear.PackedLinear:
    assert isinstance(linear, PackedLinear)
    return linear.packed


def _norm(norm: Norm) -> RMSNorm:
    assert isinstance(norm, RMSNorm)
    return norm
