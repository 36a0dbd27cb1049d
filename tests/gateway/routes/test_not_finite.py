"""What a client is told when the model computed NaN for its request."""

from __future__ import annotations

import json
from typing import Any

from fakes.fake_engine import FakeEngine
from schedcore.api.types import EngineError, ErrorCode

CHAT = {"messages": [{"role": "user", "content": "a"}]}


async def test_it_is_an_error_in_openai_s_shape_answered_or_streamed(serve: Any) -> None:
    engine = FakeEngine()
    engine.refusal = EngineError(ErrorCode.NOT_FINITE, "not finite")
    client = await serve(engine)
    expected = {"message": "not finite", "type": "server_error", "param": None, "code": "not_finite"}
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a"})):
        response = await client.post(path, json=body)
        assert (response.status, (await response.json())["error"]) == (500, expected)
        response = await client.post(path, json=body | {"stream": True})
        if response.status == 200:  # it had begun
            *_, last = (await response.text()).strip().split("\n\n")
            assert json.loads(last.removeprefix("data: "))["error"] == expected
        else:
            assert (response.status, (await response.json())["error"]) == (500, expected)
