"""Every operation with a kernel of ours: the door. Behind it a file per kind; only native.py names the kernels.

Shapes, strides, dtypes and devices are checked here, once, at the door; kernels trust what they get. On devices without
kernels the torch twins of reference.py do the work.

T tokens in the flattened batch. Activations are float32 on CPU, where the pool may be float32, bfloat16 or float16; on
CUDA they have the pool's dtype. Everything raises ValueError for tensors it cannot take.
"""

from worker.ops.attention import paged_attention
from worker.ops.cache import (
    hidden_gather,
    hidden_write,
    int8_blocks,
    land,
    make_block_saver,
    project_rope_write,
    rope_kv_write,
    unit_copy,
    wait_for_units,
)
from worker.ops.decoder_step import has_decoder_step, make_decoder_step
from worker.ops.head_norms import HeadNorms
from worker.ops.native import DEFAULT_THREADS, backend, num_threads, set_num_threads
from worker.ops.norm import add_rms_norm, rms_norm
from worker.ops.products import dense_linear, gemv, linear, pack_linear, silu_mul
from worker.ops.sampling import (
    allow_tokens,
    allow_tokens_at,
    allowed_argmax_at,
    argmax,
    draw_tokens,
    draws_on_device,
    takes_addresses,
    takes_addresses_on,
)

__all__ = [
    "DEFAULT_THREADS",
    "HeadNorms",
    "add_rms_norm",
    "allow_tokens",
    "allow_tokens_at",
    "allowed_argmax_at",
    "argmax",
    "backend",
    "dense_linear",
    "draw_tokens",
    "draws_on_device",
    "gemv",
    "has_decoder_step",
    "hidden_gather",
    "hidden_write",
    "int8_blocks",
    "land",
    "linear",
    "make_block_saver",
    "make_decoder_step",
    "num_threads",
    "pack_linear",
    "paged_attention",
    "project_rope_write",
    "rms_norm",
    "rope_kv_write",
    "set_num_threads",
    "silu_mul",
    "takes_addresses",
    "takes_addresses_on",
    "unit_copy",
    "wait_for_units",
]
