# The native module built from kernels/. Pointers are Tensor.data_ptr(), strides in elements, dtype as in
# kernels/include/dtype.h. stream: a CUDA stream, or -1 for the CPU. Arguments are not checked: call through ops.py.
# A launcher that has no code for its arguments raises RuntimeError.

has_cuda: bool

def set_num_threads(n: int) -> None: ...
def num_threads() -> int: ...
def set_isa(name: str) -> None: ...  # kernels/include/cpu.h names them; ValueError where one is missing
def isa() -> str: ...

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
        dtype: int,
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
) -> None: ...
def paged_attention_workspace_bytes(step: Step, num_heads: int, dtype: int, stream: int, /) -> int: ...
def linear(
    out: int,
    x: int,
    packed: int,
    bias: int,
    num_tokens: int,
    in_features: int,
    out_features: int,
    x_stride: int,
    panel_width: int,
    dtype: int,
    is_gated: bool,
    /,
) -> None: ...  # CPU only
def linear_panel_width() -> int: ...
def read_limit(data: int, num_bytes: int, /) -> float: ...
def arithmetic_limit(rounds: int, /) -> int: ...  # float32 operations done
