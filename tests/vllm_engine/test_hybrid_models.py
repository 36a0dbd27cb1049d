"""Models whose layers keep states instead of tokens, steered at random. Needs vLLM: make test-vllm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import vllm_engine.engine_process as process
from fakes.random_steering import RandomSteering
from fakes.tiny_families import write_family
from fakes.vllm_crowd import requests, serve
from schedcore.api.config import VLLM_POLICY, EngineConfig

NUM_REQUESTS = 60


@pytest.mark.parametrize("family", ["granite-moe-hybrid"])
def test_random_steering_changes_no_token(tmp_path: Path, family: str) -> None:
    """States are computed again where a request was put out, and go on where one rested in the middle of its prompt."""
    config = EngineConfig(
        model=str(write_family(family, tmp_path / family)),
        dtype="float32",
        enforce_eager=True,
        policy=VLLM_POLICY,
        max_model_len=1024,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        cache_memory_bytes=1 << 27,
    )
    engine, _ = process.build_engine(config, time.monotonic())
    try:
        expected = serve(engine, requests(NUM_REQUESTS, 1), None)
        steering = RandomSteering(7)
        assert serve(engine, requests(NUM_REQUESTS, 1), steering) == expected
        assert steering.num_preempted > 0
    finally:
        engine.close()
