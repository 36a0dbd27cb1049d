"""Images in chats: what the engine gets, and what is refused. Nothing is ever fetched."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.byte_tokenizer import write_byte_checkpoint
from fakes.fake_engine import IMAGE_TOKENS, INFO, FakeEngine
from fakes.sse_reader import parse_events
from gateway.model.checkpoint import Checkpoint
from schedcore.api.types import ImageLimits

CHAT = "/v1/chat/completions"
LIMITS = ImageLimits(max_images=2, max_image_bytes=3000, max_pixels=100)
_PART = "{% if part.type == 'image' %}<IMG>{% else %}{{ part.text }}{% endif %}"
PARTS = "{% for m in messages %}{% for part in m.content %}" + _PART + "{% endfor %};{% endfor %}"
EITHER = (
    "{% for m in messages %}{% if m.content is string %}={{ m.content }}{% else %}"
    "{% for part in m.content %}" + _PART + "{% endfor %}{% endif %};{% endfor %}"
)


def image(data: bytes = b"bytes", kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def url(text: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": text}


def says(*content: Any, role: str = "user") -> dict[str, Any]:
    parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    return {"role": role, "content": parts}


@pytest.fixture
def engine() -> FakeEngine:
    made = FakeEngine()
    made.info_to_be = msgspec.structs.replace(INFO, images=LIMITS)
    return made


@pytest.fixture(params=[PARTS, EITHER])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    return Checkpoint.read(write_byte_checkpoint(tmp_path / "model", chat_template=request.param))


async def test_images_go_to_the_engine_and_have_places_in_the_prompt(serve: Any, engine: FakeEngine) -> None:
    client = await serve(engine)
    messages = [says("a", image(b"one"), "b"), {"role": "assistant", "content": "c"}, says(image(b"two", "image/jpeg"))]
    response = await client.post(CHAT, json={"messages": messages, "max_tokens": 4, "n": 2})
    assert response.status == 200
    assert [request.images for request in engine.requests] == [[b"one", b"two"]] * 2
    prompt = bytes(engine.requests[0].prompt_token_ids)
    assert prompt.replace(b"=", b"") == b"a<IMG>b;c;<IMG>;"
    usage = (await response.json())["usage"]
    assert usage["prompt_tokens"] == len(prompt) + 2 * IMAGE_TOKENS
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


async def test_streams_count_them_too(serve: Any, engine: FakeEngine) -> None:
    asked = {"messages": [says(image())], "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    response = await (await serve(engine)).post(CHAT, json=asked)
    *_, last, done = parse_events(await response.text())
    assert done == "[DONE]"
    assert last["usage"]["prompt_tokens"] == len(b"<IMG>;") + IMAGE_TOKENS


async def test_tools_that_the_template_does_not_know_are_said_beside_images(serve: Any, engine: FakeEngine) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        says("Look."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "There."},
        says("And here? ", image()),
    ]
    response = await (await serve(engine)).post(CHAT, json={"messages": messages, "tools": [tool], "max_tokens": 2})
    assert response.status == 200
    assert bytes(engine.requests[0].prompt_token_ids).endswith(b"Result of look: There.\nAnd here? <IMG>;")


@pytest.mark.parametrize(
    ("message", "param", "word"),
    [
        (says(url("http://10.0.0.1/a.png")), "messages[0].content[0].image_url.url", "fetches nothing"),
        (says(url("file:///etc/passwd")), "messages[0].content[0].image_url.url", "fetches nothing"),
        (says(image(kind="text/html")), "messages[0].content[0].image_url.url", "fetches nothing"),
        (says({"type": "image_url"}), "messages[0].content[0].image_url.url", "fetches nothing"),
        (says("a", url("data:image/png;base64,A")), "messages[0].content[1].image_url.url", "base64"),
        (says(url("data:image/png;base64,====")), "messages[0].content[0].image_url.url", "base64"),
        (says(image(bytes(4000))), "messages[0].content[0].image_url.url", "3000 bytes"),
        (says(image(), image(), image()), "messages", "At most 2 images"),
        (says(image(), role="system"), "messages[0].content[0].type", "of role 'system'"),
        (says({"type": "image"}), "messages[0].content[0].type", "'image' is not supported"),
        (says({"type": "input_audio"}), "messages[0].content[0].type", "'input_audio' is not supported"),
    ],
)
async def test_what_is_refused(serve: Any, engine: FakeEngine, message: dict[str, Any], param: str, word: str) -> None:
    response = await (await serve(engine)).post(CHAT, json={"messages": [message], "max_tokens": 2})
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)
    assert word in error["message"]
    assert engine.requests == []


async def test_log_probabilities_of_the_prompt_are_not_told_beside_images(serve: Any, engine: FakeEngine) -> None:
    asked = {"messages": [says(image())], "max_tokens": 2, "prompt_logprobs": 1}
    response = await (await serve(engine)).post(CHAT, json=asked)
    assert (response.status, (await response.json())["error"]["param"]) == (400, "prompt_logprobs")


async def test_an_engine_without_them_and_routes_that_take_none(serve: Any, engine: FakeEngine) -> None:
    message = says("a", image())
    without = await (await serve(FakeEngine())).post(CHAT, json={"messages": [message], "max_tokens": 2})
    error = (await without.json())["error"]
    assert (without.status, error["param"], error["code"]) == (400, "messages[0].content[1].type", "unsupported")
    tokenized = await (await serve(engine)).post("/tokenize", json={"messages": [message]})
    assert tokenized.status == 400
    announced = await (await serve(engine)).post("/v1/advisories", json={"session_id": "a", "messages": [message]})
    assert announced.status == 400


async def test_a_template_without_a_place_for_images(
    serve: Any, engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = write_byte_checkpoint(tmp_path_factory.mktemp("text"), chat_template=template)
    client = await serve(engine, checkpoint=Checkpoint.read(folder))
    response = await client.post(CHAT, json={"messages": [says(image())], "max_tokens": 2})
    assert response.status == 400
    assert "no place for images" in (await response.json())["error"]["message"]
