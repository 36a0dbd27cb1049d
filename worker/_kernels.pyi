# The native module built from kernels/. Pointers are Tensor.data_ptr(), strides in elements, dtype as in
# kernels/include/base/dtype.h. stream: a CUDA stream, or -1 for the CPU. Arguments are not checked: call worker/ops. A
# launcher that has no code for its arguments raises RuntimeError.

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
UInt64Array = npt.NDArray[np.uint64]

has_cuda: bool

def set_num_threads(n: int) -> None: ...
def num_threads() -> int: ...
def set_isa(name: str) -> None: ...  # kernels/include/cpu.h names them; ValueError where one is missing
def isa() -> str: ...
def set_shared_keys(is_shared: bool, /) -> None: ...  # kernels/include/cpu.h

class PagedPool:
    def __init__(
        self,
        data: int,
        block_table: int,
        layers_per_unit: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        num_groups: int,
        max_blocks: int,
        vector_size: int,
        dtype: int,
        int8_rows: int,
        /,
    ) -> None: ...

class Step:
    def __init__(
        self,
        pool: PagedPool,
        positions: int,
        token_row: int,
        rows: int,
        query_start: int,
        seq_lens: int,
        num_tokens: int,
        num_seqs: int,
        max_query_len: int,
        max_seq_len: int,
        /,
    ) -> None: ...

def rms_norm(
    out: int,
    x: int,
    weight: int,
    residual: int,
    num_outer: int,
    num_inner: int,
    hidden: int,
    outer_stride: int,
    inner_stride: int,
    eps: float,
    dtype: int,
    stream: int,
    /,
) -> None: ...
def gemv(
    out: int,
    x: int,
    weight: int,
    bias: int,
    num_rows: int,
    in_features: int,
    out_features: int,
    x_stride: int,
    is_gated: bool,
    dtype: int,
    stream: int,
    /,
) -> None: ...
def silu_mul(out: int, gate_up: int, num_tokens: int, intermediate: int, dtype: int, stream: int, /) -> None: ...
def rope_kv_write(
    q: int,
    k: int,
    v: int,
    cos_sin: int,
    step: Step,
    layer: int,
    num_heads: int,
    rotary_dim: int,
    q_stride: int,
    k_stride: int,
    v_stride: int,
    dtype: int,
    q_norm: int,
    k_norm: int,
    norm_eps: float,
    stream: int,
    /,
) -> None: ...
def paged_attention(
    out: int,
    q: int,
    step: Step,
    layer: int,
    num_heads: int,
    q_stride: int,
    sliding_window: int,
    scale: float,
    dtype: int,
    workspace: int,
    stream: int,
    /,
) -> int: ...  # the keys that sequences read with others
def paged_attention_workspace_bytes(step: Step, num_heads: int, dtype: int, stream: int, /) -> int: ...
def hidden_write(
    x: int,
    tokens: int,
    positions: int,
    token_row: int,
    pool: PagedPool,
    layer: int,
    num_tokens: int,
    hidden_size: int,
    x_stride: int,
    dtype: int,
    stream: int,
    /,
) -> None: ...
def hidden_gather(
    out: int,
    positions: int,
    token_row: int,
    pool: PagedPool,
    layer: int,
    num_tokens: int,
    hidden_size: int,
    dtype: int,
    stream: int,
    /,
) -> None: ...
def project_rope_write(
    k: int,
    v: int,
    k_norm: int,
    cos_sin: int,
    positions: int,
    token_row: int,
    pool: PagedPool,
    layer: int,
    num_tokens: int,
    rotary_dim: int,
    k_stride: int,
    v_stride: int,
    norm_eps: float,
    dtype: int,
    stream: int,
    /,
) -> None: ...
def int8_blocks(
    pool: PagedPool,
    from_units: int,
    to_units: int,
    num_blocks: int,
    workspace: int,
    /,
) -> None: ...  # CPU only

class BlockSaver:
    """CPU only. Of a host's slots and a pool's units, which must stay where they are. For one thread."""

    def __init__(
        self, host: int, pool: int, num_slots: int, num_units: int, units_per_block: int, unit_bytes: int, /
    ) -> None: ...
    def save(self, slots: Int32Array, units: Int32Array, /) -> None:
        """Raises IndexError, and copies nothing then."""

def unit_copy(
    to: int,
    source: int,
    to_units: int,
    from_units: int,
    num_units: int,
    unit_bytes: int,
    is_alone: bool,
    stream: int,
    /,
) -> None: ...
def linear(
    out: int,
    x: int,
    packed: int,
    bias: int,
    num_tokens: int,
    in_features: int,
    out_features: int,
    x_stride: int,
    out_stride: int,
    panel_width: int,
    dtype: int,
    x_dtype: int,
    out_dtype: int,
    is_gated: bool,
    is_added: bool,
    /,
) -> None: ...  # CPU only
def linear_panel_width() -> int: ...

class LinearWeight:
    def __init__(
        self,
        packed: int,
        bias: int,
        in_features: int,
        out_features: int,
        panel_width: int,
        dtype: int,
        is_gated: bool,
        /,
    ) -> None: ...

class DecoderLayer:
    def __init__(
        self,
        attention_norm: int,
        qkv: LinearWeight,
        q_norm: int,
        k_norm: int,
        output: LinearWeight,
        sliding_window: int,
        mlp_norm: int,
        gate_up: LinearWeight,
        down: LinearWeight,
        /,
    ) -> None: ...

class Decoder:  # CPU only; arrays are used in place, a wrong dtype is a TypeError
    def __init__(
        self,
        pool: PagedPool,
        embedding: int,
        embedding_dtype: int,
        cos_sin: int,
        layers: list[DecoderLayer],
        final_norm: int,
        head: LinearWeight,
        hidden_size: int,
        num_heads: int,
        rotary_dim: int,
        norm_eps: float,
        attention_scale: float,
        num_landed: int,
        max_positions: int,
        num_rows: int,
        /,
    ) -> None: ...
    def run(
        self,
        token_ids: Int32Array,
        positions: Int32Array,
        token_row: Int32Array,
        query_start: Int32Array,
        seq_lens: Int32Array,
        rows: Int32Array,
        sample_tokens: Int32Array,
        hidden: int,
        logits: int,
    ) -> None: ...
    def run_greedy(
        self,
        token_ids: Int32Array,
        positions: Int32Array,
        token_row: Int32Array,
        query_start: Int32Array,
        seq_lens: Int32Array,
        rows: Int32Array,
        sample_seqs: Int32Array,
        hidden: int,
        logits: int,
    ) -> Int32Array: ...
    def take_stage_ns(self) -> tuple[int, ...]: ...  # by DecoderStage, since the last call; the first starts timing

def argmax(logits: int, vocab_size: int, tokens: Int32Array) -> None: ...
def allow_tokens(logits: int, vocab_size: int, rows: Int32Array, masks: UInt64Array) -> None: ...  # masks: addresses
def allowed_argmax(logits: int, vocab_size: int, rows: Int32Array, masks: UInt64Array, tokens: Int32Array) -> None: ...
def draw_tokens(
    logits: int,
    vocab_size: int,
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    seed: npt.NDArray[np.uint64],
    index: npt.NDArray[np.int64],
    tokens: Int32Array,
    masks: UInt64Array,  # addresses, 0 for rows without; of length 0: no row has one
) -> None: ...
def draw_tokens_on_device(
    tokens: int,
    logits: int,
    num_rows: int,
    vocab_size: int,
    temperature: int,
    top_k: int,
    top_p: int,
    min_p: int,
    seed: int,
    index: int,
    stream: int,
    /,
) -> None: ...
def land(num_landed: int, num_groups: int, /) -> None: ...
def wait_until_landed(num_landed: int, group: int, /) -> None: ...
def read_limit(data: int, num_bytes: int, /) -> float: ...
def arithmetic_limit(rounds: int, dtype: int, /) -> int: ...  # operations done; dtype: of what is multiplied
