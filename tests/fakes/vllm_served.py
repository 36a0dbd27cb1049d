"""An engine process's engine over vLLM, in this process, and one request at a time."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import vllm_engine.engine_process as process
from schedcore.api.config import EngineConfig
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, FinishReason, SamplingParams, SessionState
from vllm_engine.engine import VllmEngine

MODEL = Path(__file__).resolve().parents[2] / "worker/demo_model"
GATEWAY = b"test"
SIZE = 32  # tokens of a block
NUM_BLOCKS = 40


class VllmServed:
    """REQUIRES: no other in this process until engine.close(): vLLM has one connector per process."""

    def __init__(self, **options: Any) -> None:
        config = EngineConfig(
            model=str(MODEL),
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            cache_memory_bytes=1 << 28,
            block_size=SIZE,
            restore="always",
            vllm_options=(f"num_gpu_blocks_override={NUM_BLOCKS + 1}",),
            **options,
        )
        self.engine: VllmEngine = process.build_engine(config, time.monotonic())[0]
        self._draw = random.Random(0)
        self._last = 0

    def tokens(self, num: int) -> list[int]:
        return [self._draw.randrange(10, 1000) for _ in range(num)]

    def ask(self, prompt: list[int], max_tokens: int = 4, **fields: Any) -> tuple[list[int], int]:
        """Its tokens, and how many of the prompt's were cached."""
        self._last += 1
        sampling = SamplingParams(temperature=0.0)
        self.engine.add(GATEWAY, EngineRequest(self._last, prompt, max_tokens, sampling, **fields))
        tokens, num_cached = [], 0
        while True:
            self.engine.step()
            for delta in self.engine.take_deltas().get(GATEWAY, []):
                assert delta.error is None
                tokens += delta.token_ids
                num_cached = max(num_cached, delta.num_cached_tokens)
                if delta.finish_reason is not FinishReason.NONE:
                    self.rest()
                    return tokens, num_cached

    def rest(self) -> None:
        while self.engine.step():
            pass
        self.engine.check_invariants()

    def advise(self, event: AdvisoryEvent, session_id: str = "s", **fields: Any) -> SessionState:
        return self.engine.advise(Advisory(session_id, event, **fields))

    def crowd_out(self, num_blocks: int = 2 * NUM_BLOCKS, session_id: str = "crowd") -> None:
        """Others use so many blocks: a session, or with no name requests without one."""
        for _ in range(0, num_blocks, 8):
            self.ask(self.tokens(8 * SIZE - 8), session_id=session_id)
