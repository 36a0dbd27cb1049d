"""Sessions and a restart. Needs vLLM: make test-vllm."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm")

from fakes.vllm_served import SIZE, VllmServed
from schedcore.api.types import AdvisoryEvent, SessionAction


def test_sessions_are_known_after_a_restart(tmp_path: Path) -> None:
    options = {"host_cache_bytes": 64 << 20, "disk_cache_dir": str(tmp_path)}
    served = VllmServed(**options)
    prompt = served.tokens(6 * SIZE)
    served.ask(prompt, session_id="kept")
    served.ask(served.tokens(40), session_id="forgotten")
    served.advise(AdvisoryEvent.RELEASE, "forgotten")
    served.engine.close()
    served = VllmServed(**options)
    try:
        assert served.engine.stats().num_sessions == 1
        state = served.advise(AdvisoryEvent.TYPING, "kept")
        assert (state.action, state.tier_tokens) == (SessionAction.PREFETCH, [0, 0, 6 * SIZE])
        served.rest()
        assert served.ask([*prompt, 3], session_id="kept")[1] == 6 * SIZE
    finally:
        served.engine.close()
