"""Workload files: a trace, or one line that says why not; and what a trace becomes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fuzz.cursor import Cursor
from schedcore.simulation.workloads.traces import TraceError, read_trace

MAX_TOKENS = 1 << 20  # of what is made into a workload, which takes memory in proportion
_FILE = Path(tempfile.mkdtemp(prefix="hocket-fuzz-")) / "trace.csv"


def check(data: bytes) -> None:
    cursor = Cursor(data)
    jitter, hash_block_size = cursor.below(2) / 2, (None, 16, 512)[cursor.below(3)]
    _FILE.write_bytes(cursor.rest())
    try:
        trace = read_trace(_FILE)
        if sum(trace.input_tokens) + sum(trace.output_tokens) > MAX_TOKENS:
            return
        fitting = trace.fitting(4096)
        assert len(fitting) <= len(trace)
        assert len(trace.session_numbers) == len(trace)
        workload = trace.workload(jitter_s=jitter, hash_block_size=hash_block_size)
        assert len(workload) == len(trace)
    except TraceError as error:
        assert str(error)
