"""The largest bodies on every route: answered or refused clearly, and the event loop does none of their work."""

from __future__ import annotations

import base64
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_engine import FakeEngine
from fakes.growth import MAX_RATIO, growth
from fakes.hostile_texts import HOSTILE_TEXTS
from fakes.loop_budget import LoopCosts
from fakes.tokenizer_kinds import TOKENIZER_KINDS, tokenizer_of_kind
from gateway.config.standard_webhooks import WebhookSecret, sign
from gateway.model.text_pieces import pieces
from gateway.protocol.decoding.json_weight import check_weight
from gateway.protocol.errors import InvalidRequestError
from gateway.routes.webhooks import MAX_BYTES

MIB = 2**20
CHAT, COMPLETIONS, ADVISORIES, BATCHES = "/v1/chat/completions", "/v1/completions", "/v1/advisories", "/v1/batches"
MESSAGE = '{"role":"user","content":""}'
PART = '{"type":"text","text":"a"}'
ADVISED = '"session_id":"s"'
BATCH = f'"input_file_id":"file-1","endpoint":"{CHAT}","completion_window":"24h"'


def many(item: str, size: int) -> str:
    return ",".join([item] * (size // (len(item) + 1)))


LARGE = {
    "detokenize": ("/detokenize", lambda n: '{"tokens":[' + many("1", n) + "]}", 400),
    "messages": (CHAT, lambda n: '{"messages":[' + many(MESSAGE, n) + "]}", 400),
    "parts": (CHAT, lambda n: '{"messages":[{"role":"user","content":[' + many(PART, n) + "]}]}", 400),
    "template variables": (
        CHAT,
        lambda n: f'{{"messages":[{MESSAGE}],"chat_template_kwargs":{{' + many('"abcde":1', n) + "}}",
        400,
    ),
    "token ids": (COMPLETIONS, lambda n: '{"prompt":[' + many("1", n) + "]}", 400),
    "prompts": (COMPLETIONS, lambda n: '{"prompt":[' + many('"a"', n) + "]}", 400),
    "a prompt": (COMPLETIONS, lambda n: json.dumps({"prompt": "ab1 " * (n // 4)}), 400),
    "a chat": (CHAT, lambda n: json.dumps({"messages": [{"role": "user", "content": "ab1 " * (n // 4)}]}), 400),
    "a text to tokenize": ("/tokenize", lambda n: json.dumps({"prompt": "ab1 " * (n // 4)}), 400),
    "a wrong value": (
        CHAT,
        lambda n: f'{{"messages":[{MESSAGE}],"service_tier":"' + " - at `" * (n // 7) + '"}',
        400,
    ),
    "bias": (COMPLETIONS, lambda n: '{"prompt":"a","logit_bias":{' + many('"12345":1', n) + "}}", 400),
    "what nobody knows": (COMPLETIONS, lambda n: '{"prompt":"a","x":[' + many("{}", n) + "]}", 400),
    "an advisory's messages": (ADVISORIES, lambda n: f'{{{ADVISED},"messages":[{many(MESSAGE, n)}]}}', 400),
    "an advisory's parts": (
        ADVISORIES,
        lambda n: f'{{{ADVISED},"messages":[{{"role":"user","content":[{many(PART, n)}]}}]}}',
        400,
    ),
    "an advisory's tokens": (ADVISORIES, lambda n: f'{{{ADVISED},"prompt":[{many("1", n)}]}}', 400),
    "an advisory's prompt": (ADVISORIES, lambda n: f'{{{ADVISED},"prompt":"{"ab1 " * (n // 4)}"}}', 200),
    "a draft": (ADVISORIES, lambda n: f'{{{ADVISED},"messages":[],"draft":"{"ab1 " * (n // 4)}"}}', 200),
    "an advisory's variables": (
        ADVISORIES,
        lambda n: f'{{{ADVISED},"messages":[{MESSAGE}],"chat_template_kwargs":{{' + many('"abcde":1', n) + "}}",
        400,
    ),
    "a session's name": (ADVISORIES, lambda n: json.dumps({"session_id": "s" * n}), 400),
    "a batch's metadata": (BATCHES, lambda n: f'{{{BATCH},"metadata":{{' + many('"abcde":"1"', n) + "}}", 400),
    "a long value of a batch": (BATCHES, lambda n: f'{{{BATCH},"metadata":{{"a":"{"x" * n}"}}}}', 400),
    "what no batch has": (BATCHES, lambda n: f'{{{BATCH},"x":[{many("{}", n)}]}}', 400),
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_large_body_is_read_beside_the_event_loop(
    serve: Any, tmp_path: Path, name: str, loop_costs: LoopCosts
) -> None:
    path, make, status = LARGE[name]
    client = await serve(FakeEngine(), data_dir=str(tmp_path / "data"), max_advisory_bytes_per_second=1e9)
    body = make(4 * MIB).encode()
    response = await client.post(path, data=io.BytesIO(body), headers={"Content-Type": "application/json"})
    answer = await response.json()
    assert response.status == status, answer
    assert status == 200 or answer["error"]["message"]
    assert loop_costs.num_callbacks > 10
    loop_costs.check()


async def test_a_large_answer_is_encoded_beside_the_event_loop(serve: Any, loop_costs: LoopCosts) -> None:
    client = await serve(FakeEngine())
    message = {"role": "user", "content": "Hello"}
    most = {"n": 64, "max_tokens": 190, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    response = await client.post(CHAT, json={"messages": [message]} | most)
    assert response.status == 200, await response.text()
    assert len(await response.read()) > 10 * MIB
    loop_costs.check()


TYPING = {
    "messages": (lambda n: f'{ADVISED},"messages":[{many(MESSAGE, n)}]', 400),
    "tokens": (lambda n: f'{ADVISED},"prompt":[{many("1", n)}]', 204),
    "a draft": (lambda n: f'{ADVISED},"messages":[],"draft":"{"ab1 " * (n // 4)}"', 204),
    "what nobody knows": (lambda n: f'{ADVISED},"x":[{many("{}", n)}]', 400),
}


@pytest.mark.parametrize("name", TYPING)
async def test_a_large_webhook_is_read_beside_the_event_loop(serve: Any, name: str, loop_costs: LoopCosts) -> None:
    make, status = TYPING[name]
    secret = "whsec_" + base64.b64encode(b"a" * 32).decode()
    config = {"typing_webhook_secrets": (secret,), "max_advisory_bytes_per_second": 1e9}
    client = await serve(FakeEngine(), **config)
    body = ('{"type":"typing.started","data":{' + make(MAX_BYTES - 100) + "}}").encode()
    headers = sign([WebhookSecret.parse(secret)], "msg_1", time.time(), body)
    response = await client.post(
        "/v1/webhooks/typing", data=io.BytesIO(body), headers=headers | {"Content-Type": "application/json"}
    )
    assert response.status == status, await response.text()
    assert loop_costs.num_callbacks > 10
    loop_costs.check()


EDGE = b"--a\r\nContent-Disposition: form-data; name="
END = b"\r\n--a--\r\n"
FORMS = {  # all lack their purpose, at least
    "a file": lambda n: EDGE + b"file; filename=f\r\n\r\n" + b"x" * n + END,
    "almost ends": lambda n: EDGE + b"file; filename=f\r\n\r\n" + b"\r\n--" * (n // 4) + END,
    "a field": lambda n: EDGE + b"purpose\r\n\r\n" + b"x" * n + END,
    "fields": lambda n: (EDGE + b"x\r\n\r\ny\r\n") * (n // 50) + END,
    "a head": lambda n: EDGE + b"x\r\n" + b"X-A: b\r\n" * (n // 8) + END,
    "no part": lambda n: b"\r\n" * (n // 2),
}


@pytest.mark.parametrize("name", FORMS)
async def test_a_large_form_is_read_in_short_turns(
    serve: Any, tmp_path: Path, name: str, loop_costs: LoopCosts
) -> None:
    client = await serve(FakeEngine(), data_dir=str(tmp_path / "data"))
    headers = {"Content-Type": "multipart/form-data; boundary=a"}
    response = await client.post("/v1/files", data=io.BytesIO(FORMS[name](4 * MIB)), headers=headers)
    assert response.status == 400, await response.text()
    assert loop_costs.num_callbacks > 10
    loop_costs.check()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_session_of_any_name_and_salt_is_looked_up_at_once(
    serve: Any, method: str, loop_costs: LoopCosts
) -> None:
    client = await serve(FakeEngine())
    response = await client.request(method, "/v1/sessions/" + "%2F" * 1000 + "?cache_salt=" + "s" * 4000)
    assert response.status in (400, 404), await response.text()
    loop_costs.check()


def test_strings_weigh_nothing() -> None:
    check_weight(json.dumps({"prompt": '{[,:\\"' * 100_000}).encode(), 1000)
    with pytest.raises(InvalidRequestError):
        check_weight(b'["\\\\",' + b"1," * 1001 + b"1]", 1000)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_weighing_is_linear(text: str) -> None:
    assert (
        growth(lambda b: check_weight(b, 100), lambda n: json.dumps(HOSTILE_TEXTS[text](n)).encode(), 50_000)
        < MAX_RATIO
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen", "o200k", "tekken", "starcoder"])
def test_tokens_of_pieces_are_those_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.model.text_pieces.PIECE_CHARACTERS", 7)
    tokenizer = tokenizer_of_kind(kind)
    text = "It's a café, isn't it? Yes.  No, 12 of e\u0301 日本。東京 is Ab ABC <s>x y</s>.\n\n so, \u0301a b\r\n c" * 3
    cut = list(pieces(text, tokenizer._steady.may_cut_texts))
    assert len(cut) > 10
    assert "".join(cut) == text
    ids = [i for piece in cut for i in tokenizer._encode([piece], False)[0]]
    assert ids == tokenizer._encode([text], False)[0]


def test_tokenizers_whose_words_are_not_known_get_texts_whole() -> None:
    kinds = {kind for kind in TOKENIZER_KINDS if tokenizer_of_kind(kind)._steady.may_cut_texts}
    assert kinds.isdisjoint({"unknown pattern", "llama2", "unigram", "word pieces", "odd added tokens", "bytes"})
