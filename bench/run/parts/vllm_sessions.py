"""A conversation that comes back over vLLM: its first token, with and without slower tiers, announced or not.

    build/vllm-env/bin/python -m bench.run.parts.vllm_sessions [--model DIR] [--sessions 12] [--turns 3] [--json]

Sessions take turns one after the other on a device that holds a third of them; each turn's prompt is the one before
with 64 tokens more. `nothing`: vLLM's prefix cache alone; `host`: with the host tier; `announced`: an advisory comes
before each turn, and the engine has nothing else to do meanwhile. Median and largest milliseconds from the request to
its first token, of all turns but the first; the share of prompt tokens that was cached. The engine alone, no gateway.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from schedcore.api.config import EngineConfig
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, SamplingParams
from vllm_engine.engine import VllmEngine
from vllm_engine.engine_process import build_engine

MODEL = Path(__file__).resolve().parents[3] / "worker/demo_model"
BLOCK_SIZE, FIRST_TOKENS, MORE_TOKENS, ANSWER_TOKENS = 32, 1024, 64, 4
GATEWAY = b"bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        _measure(options, *way)
        for way in (("nothing", 0, False), ("host", 1 << 30, False), ("announced", 1 << 30, True))
    ]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'':10}  {'median ms':>9}  {'most ms':>9}  {'cached':>6}")
    for row in rows:
        print(f"{row['way']:10}  {row['median_ms']:9.1f}  {row['most_ms']:9.1f}  {row['cached']:6.0%}")


def _measure(options: argparse.Namespace, way: str, host_bytes: int, is_announced: bool) -> dict[str, Any]:
    most_tokens = FIRST_TOKENS + options.turns * (MORE_TOKENS + ANSWER_TOKENS)
    num_blocks = max(options.sessions // 3, 2) * -(-most_tokens // BLOCK_SIZE)
    config = EngineConfig(
        model=options.model,
        dtype="float32",
        enforce_eager=True,
        max_num_batched_tokens=2048,
        cache_memory_bytes=1 << 30,
        block_size=BLOCK_SIZE,
        host_cache_bytes=host_bytes,
        vllm_options=(f"num_gpu_blocks_override={num_blocks + 1}",),
    )
    engine, _ = build_engine(config, time.monotonic())
    try:
        return {"way": way} | _serve(engine, options.sessions, options.turns, is_announced)
    finally:
        engine.close()


def _serve(engine: VllmEngine, num_sessions: int, num_turns: int, is_announced: bool) -> dict[str, float]:
    draw = random.Random(0)
    texts = [[draw.randrange(10, 1000) for _ in range(FIRST_TOKENS)] for _ in range(num_sessions)]
    seconds, num_cached, num_prompt, number = [], 0, 0, 0
    for turn in range(num_turns):
        for i, text in enumerate(texts):
            number += 1
            if is_announced and turn > 0:
                engine.advise(Advisory(f"s{i}", AdvisoryEvent.TYPING))
                _rest(engine)
            text += [draw.randrange(10, 1000) for _ in range(MORE_TOKENS)]
            sampling = SamplingParams(temperature=0.0)
            request = EngineRequest(number, list(text), ANSWER_TOKENS, sampling, session_id=f"s{i}")
            start = time.perf_counter()
            engine.add(GATEWAY, request)
            while not (deltas := engine.take_deltas().get(GATEWAY)):
                engine.step()
            elapsed = time.perf_counter() - start
            if turn > 0:
                seconds.append(elapsed)
                num_cached += deltas[0].num_cached_tokens
                num_prompt += len(text)
            text += deltas[0].token_ids
            _rest(engine)
            text += [token for delta in engine.take_deltas().get(GATEWAY, []) for token in delta.token_ids]
    return {
        "median_ms": 1e3 * statistics.median(seconds),
        "most_ms": 1e3 * max(seconds),
        "cached": num_cached / num_prompt,
    }


def _rest(engine: VllmEngine) -> None:
    while engine.step():
        pass


if __name__ == "__main__":
    main()
