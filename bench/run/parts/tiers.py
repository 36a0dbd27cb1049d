"""Time to the first token of a prompt that the device has dropped, by the tier that it comes back from.

    python -m bench.run.parts.tiers [MODEL] [--tokens 900] [--rounds 8]

One engine in this process per row. Each round computes a prompt, floods the device until it is gone, and asks again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time

from schedcore.api.config import EngineConfig
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, SamplingParams
from worker.process.engine import Engine
from worker.process.engine_process import build_engine

GATEWAY = b"bench"
GREEDY = SamplingParams(temperature=0.0)
FLOOD_PROMPTS = 4
TOKEN_IDS = range(100, 400)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=900, help="of a prompt")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    probe = make_engine(arguments.model, arguments.tokens, 256 << 20)
    prompt_bytes = probe.stats().block_bytes * (arguments.tokens // 16 + 8)
    with tempfile.TemporaryDirectory() as folder:
        always = {"restore": "always", "host_cache_bytes": 200 * prompt_bytes}
        first = {**always, "overlap_restores": False}
        disk = {**always, "host_cache_bytes": prompt_bytes * 5 // 4, "disk_cache_dir": folder}
        rows = {
            "recomputed": (prompt_bytes * 5 // 4, {}, False),
            "disk": (prompt_bytes * 5 // 4, disk, False),
            "host, then computed": (prompt_bytes * 5 // 4, first, False),
            "host, meanwhile": (prompt_bytes * 5 // 4, always, False),
            "host, announced": (prompt_bytes * 5 // 4, always, True),
            "device": (prompt_bytes * FLOOD_PROMPTS * 3 // 2, {}, False),
        }
        for name, (cache_bytes, settings, is_announced) in rows.items():
            engine = make_engine(arguments.model, arguments.tokens, cache_bytes, **settings)
            times = [measure(engine, i, arguments.tokens, is_announced) for i in range(arguments.rounds)]
            hits = engine.stats().num_hit_tokens
            engine.close()
            low, middle = min(times) * 1e3, statistics.median(times) * 1e3
            print(f"{name:20} min {low:7.1f} ms  median {middle:7.1f} ms  tokens from device, host, disk: {hits}")


def make_engine(model: str, num_tokens: int, cache_bytes: int, **settings: object) -> Engine:
    length = num_tokens + 64
    config = EngineConfig(
        model=model,
        max_num_seqs=8,
        max_model_len=length,
        cache_memory_bytes=cache_bytes,
        **settings,  # type: ignore[arg-type]
    )
    return build_engine(config, time.monotonic())[0]


def measure(engine: Engine, round_number: int, num_tokens: int, is_announced: bool) -> float:
    """Seconds to the first token."""
    rng, session = random.Random(round_number), f"session {round_number}"
    prompt, first_id = rng.choices(TOKEN_IDS, k=num_tokens), 100 * round_number
    ask(engine, first_id, prompt, session)
    for i in range(FLOOD_PROMPTS):
        ask(engine, first_id + 1 + i, rng.choices(TOKEN_IDS, k=num_tokens), "")
    if is_announced:
        engine.advise(Advisory(session, AdvisoryEvent.TYPING))
        drain(engine)
    return ask(engine, first_id + 99, [*prompt, *[5] * 16], session)


def ask(engine: Engine, request_id: int, prompt: list[int], session: str) -> float:
    engine.add(GATEWAY, EngineRequest(request_id, prompt, 1, GREEDY, session_id=session))
    start = time.perf_counter()
    while not engine.take_deltas():
        engine.step()
    seconds = time.perf_counter() - start
    drain(engine)
    return seconds


def drain(engine: Engine) -> None:
    """Until nothing is under way between tiers either."""
    while engine.step():
        pass


if __name__ == "__main__":
    main()
