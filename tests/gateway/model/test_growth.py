"""What parses, matches or renders takes a text four times as long in about four times the time, whatever is in it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from aiohttp import MultipartReader, StreamReader
from aiohttp.base_protocol import BaseProtocol

from fakes.byte_tokenizer import CHAT_TEMPLATE
from fakes.growth import MAX_RATIO, growth
from fakes.hostile_texts import HOSTILE_TEXTS
from fakes.tokenizer_kinds import TOKENIZER_KINDS, tokenizer_of_kind
from gateway.answers.logprobs import CompletionLogprobsWriter, chat_logprobs
from gateway.config.standard_webhooks import WebhookError, WebhookSecret, sign, verify
from gateway.http.form_stream import FormStream
from gateway.model.chat_template import ChatTemplate
from gateway.model.detokenize import PieceDetokenizer, WindowDetokenizer
from gateway.model.stop_strings import StopScanner, StopStrings
from gateway.offline.checking.checking import Checker, CheckTask
from gateway.offline.running.prefix_order import order_by_prefix, prefix_key
from gateway.offline.store.lines import response_line
from gateway.protocol.chat import ChatRequest, Message
from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import TokenLogprobs

SECRET = WebhookSecret.parse("whsec_" + base64.b64encode(b"a" * 32).decode())
MAX_STOP_CHARACTERS = 256
CHECK = CheckTask("", "batch_1", "/v1/chat/completions", ["demo"], 10**6, 10**8)
Work = Callable[[str], object]


def assert_linear(work: Work, text: str, size: int) -> None:
    assert growth(work, HOSTILE_TEXTS[text], size) < MAX_RATIO


def stop_strings(text: str) -> None:
    """As large as stop strings may be, and almost all of one in the text over and over."""
    scanner = StopScanner(StopStrings([text[:i] + "$" for i in (1, 10, 100, MAX_STOP_CHARACTERS - 1)]))
    for character in text[: len(text) // 4]:
        scanner.scan(character)


def stop_strings_at_once(text: str) -> None:
    StopScanner(StopStrings([text[: MAX_STOP_CHARACTERS - 1] + "$"])).scan(text)


def webhook(text: str) -> None:
    headers = sign([SECRET], "msg_1", 1000.0, text.encode())
    verify([SECRET], headers, text.encode(), 1000.0)


def webhook_signatures(text: str) -> None:
    headers = sign([SECRET], "msg_1", 1000.0, b"") | {"webhook-signature": "v1," + text.replace("\n", " v1,")}
    with pytest.raises(WebhookError):
        verify([SECRET], headers, b"", 1000.0)


def row(content: str, **fields: Any) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]} | fields
    return json.dumps(
        {"custom_id": content[:9], "method": "POST", "url": CHECK.endpoint, "body": body}, ensure_ascii=False
    ).encode()


def check(lines: Iterable[bytes]) -> None:
    list(Checker(CHECK).rows(io.BytesIO(b"\n".join(lines))))


WORK: dict[str, Work] = {
    "stop strings": stop_strings,
    "stop strings at once": stop_strings_at_once,
    "webhook": webhook,
    "webhook signatures": webhook_signatures,
    "a row": lambda text: check([row(text)]),
    "a wrong row": lambda text: check([row("a", service_tier=text)]),
    "rows": lambda text: check(row(text[i : i + 100]) for i in range(0, len(text), 100)),
    "lines that are no rows": lambda text: check([text.encode()]),
    "prefix order": lambda text: order_by_prefix(
        {i: prefix_key(row(text[i : i + 1000])) for i in range(0, len(text), 100)}
    ),
    "a result": lambda text: response_line(
        "batch_1", 0, "a", status_code=200, request_id="b", body=json.dumps(text).encode()
    ),
}


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("work", WORK)
def test_parsers_and_matchers_are_linear(work: str, text: str) -> None:
    assert_linear(WORK[work], text, 20_000)


def request(contents: list[str], **fields: Any) -> ChatRequest:
    return ChatRequest(
        messages=[Message("user" if i % 2 == 0 else "assistant", content) for i, content in enumerate(contents)],
        **fields,
    )


TEMPLATE = ChatTemplate(CHAT_TEMPLATE, {})
JSON_TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content | trim }}{{ m | tojson }}{% endfor %}", {})
TEMPLATES: dict[str, Work] = {
    "one message": lambda text: TEMPLATE.render(request([text])),
    "many messages": lambda text: TEMPLATE.render(request([text[i : i + 20] for i in range(0, len(text), 20)])),
    "as JSON": lambda text: JSON_TEMPLATE.render(request([text])),
    "to go on with": lambda text: continued(text),
}


def continued(text: str) -> None:
    """A final message of half the text in a text of all of it: the search for its end begins almost everywhere."""
    try:
        TEMPLATE.render(request([text, text[: len(text) // 2]], continue_final_message=True))
    except InvalidRequestError:
        assert not text.strip()


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_linear(template: str, text: str) -> None:
    assert_linear(TEMPLATES[template], text, 40_000)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("kind", ["bytes", "gpt2", "llama2", "metaspace", "unigram", "word pieces"])
def test_detokenizers_are_linear(kind: str, text: str) -> None:
    """Token by token, the window even where a table of pieces would do."""
    tokenizer = tokenizer_of_kind(kind)

    def tokens(size: int) -> list[int]:
        return tokenizer._encode([HOSTILE_TEXTS[text](size)], False)[0][: size // 4]

    def by_windows(token_ids: list[int]) -> None:
        detokenizer = WindowDetokenizer(tokenizer._backend, [], skip_special_tokens=True)
        for token_id in token_ids:
            detokenizer.add([token_id])
        detokenizer.flush()

    def by_pieces(token_ids: list[int]) -> None:
        detokenizer = PieceDetokenizer(tokenizer._all_pieces, drops_space=True)
        for token_id in token_ids:
            detokenizer.add([token_id])
        detokenizer.flush()

    assert growth(by_windows, tokens, 2000) < MAX_RATIO
    if tokenizer._style is not None:
        assert growth(by_pieces, tokens, 20_000) < MAX_RATIO


@pytest.mark.parametrize("kind", ["bytes", "llama2", "word pieces"])
def test_log_probabilities_are_rendered_in_linear_time(kind: str) -> None:
    assert kind in TOKENIZER_KINDS
    tokenizer = tokenizer_of_kind(kind)

    def entries(size: int) -> list[TokenLogprobs]:
        top = [(i, -float(i)) for i in range(5)]
        return [TokenLogprobs(i % tokenizer.vocab_size, -1.0, 1, top) for i in range(size)]

    def as_completion(found: list[TokenLogprobs]) -> None:
        writer = CompletionLogprobsWriter(tokenizer, num_top=5)
        for entry in found:
            writer.output([entry])
        writer.output(found)

    assert growth(lambda found: chat_logprobs(tokenizer, found), entries, 1000) < MAX_RATIO
    assert growth(as_completion, entries, 1000) < MAX_RATIO


async def read_form(content: bytes) -> int:
    loop = asyncio.get_running_loop()
    stream = StreamReader(BaseProtocol(loop), 2**30, loop=loop)
    for start in range(0, len(content), 1000):
        stream.feed_data(content[start : start + 1000])
    stream.feed_eof()
    form_stream = FormStream(stream)
    headers = {"Content-Type": "multipart/form-data; boundary=" + BOUNDARY}
    form = MultipartReader(headers, cast(StreamReader, form_stream))
    part = await form.next()
    num_bytes = 0
    while piece := await cast(Any, part).read_chunk(2**18):
        num_bytes += len(piece)
    return num_bytes


BOUNDARY = "ab" * 30
HOSTILE_FILES: dict[str, Callable[[int], bytes]] = {
    **{name: (lambda n, make=make: make(n).encode()) for name, make in HOSTILE_TEXTS.items()},
    "ends of lines": lambda n: b"\r\n" * (n // 2),
    "almost ends of the part": lambda n: (b"\r\n--" + BOUNDARY[:-1].encode()) * (n // 63),
    "dashes": lambda n: b"\r\n--" * (n // 4),
}


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_forms_are_read_in_linear_time(name: str) -> None:
    def form(size: int) -> bytes:
        head = b"--%s\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n" % BOUNDARY.encode()
        return head + HOSTILE_FILES[name](size) + b"\r\n--%s--\r\n" % BOUNDARY.encode()

    def read(content: bytes) -> None:
        assert asyncio.run(read_form(content)) > len(content) * 0.9

    assert growth(read, form, 200_000) < MAX_RATIO
