"""Bodies and forms that are broken on their way in: 400 in our shape, no traceback, nothing left on the disk."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.fake_engine import FakeEngine
from fakes.raw_gateway import RawGateway, post, raw_gateway
from gateway.http.form_stream import FormStream
from gateway.services import Services

CHAT = "/v1/chat/completions"
ASK = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
FILE = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
END = b"\r\n--XX--\r\n"
FORMS = {
    "no boundary line": b"text" + END,
    "nothing": b"",
    "half": FILE,
    "long part header": FILE + b"X: " + b"a" * 9000 + b"\r\n\r\ntext" + END,
    "many part headers": FILE + b"".join(b"X-%d: a\r\n" % i for i in range(200)) + b"\r\ntext" + END,
    "endless part headers": FILE + b"X: a\r\n" * 5000,
    "part header without colon": FILE + b"nonsense\r\n\r\ntext" + END,
    "short lines before": b"\n" * 100_000 + FILE + b"\r\ntext" + END,
    "long line before": b"a" * 100_000 + b"\r\n" + FILE + b"\r\ntext" + END,
    "no UTF-8 in the filename": FILE.replace(b'"a"', b'"\xff"') + b"\r\ntext" + END,
    "surrogate in the filename": FILE.replace(b'"a"', b'"\xed\xa0\x80"') + b"\r\ntext" + END,
    "no UTF-8 in a name": FILE.replace(b'name="file"', b'name="\xff"') + b"\r\ntext" + END,
    "no UTF-8 in a value": b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\xff' + END,
    "long charset": b'--XX\r\nContent-Disposition: form-data; name="_charset_"\r\n\r\n' + b"a" * 100 + END,
    "broken charset": b'--XX\r\nContent-Disposition: form-data; name="_charset_"\r\n\r\n\xff' + END,
    "form in a form": b"--XX\r\nContent-Type: multipart/mixed\r\n\r\ntext" + END,
    "form in a form with boundary": b"--XX\r\nContent-Type: multipart/mixed; boundary=YY\r\n\r\n--YY\r\n" + END,
}


async def code_of_refusal(gateway: RawGateway, sent: bytes) -> str:
    client = await gateway.connect(sent)
    status, body = await client.response()
    assert status == 400, body
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_broken_form(
    make_services: Callable[..., Services], tmp_path: Path, caplog: pytest.LogCaptureFixture, form: bytes
) -> None:
    async with raw_gateway(make_services(FakeEngine(), data_dir=str(tmp_path))) as gateway:
        sent = post("/v1/files", form).replace(b"application/json", b"multipart/form-data; boundary=XX")
        assert await code_of_refusal(gateway, sent) in ("invalid_form", "missing_parameter")
    assert "Traceback" not in caplog.text
    assert not list((tmp_path / "parts").iterdir())


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
@pytest.mark.parametrize("body", [b"this is not compressed", zlib.compress(ASK)[:10] + b"\xff" * 20, ASK])
async def test_broken_compression(
    make_services: Callable[..., Services], caplog: pytest.LogCaptureFixture, kind: str, body: bytes
) -> None:
    async with raw_gateway(make_services(FakeEngine())) as gateway:
        sent = post(CHAT, body, f"Content-Encoding: {kind}")
        assert await code_of_refusal(gateway, sent) in ("invalid_body", "invalid_json", "malformed_request")
    assert "Traceback" not in caplog.text


class CountedContent:
    """A stream of as many equal lines as anybody asks for."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self.num_lines = 0

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        self.num_lines += 1
        return self._line

    read = unread_data = at_eof = None


@pytest.mark.parametrize("line", [b"\n", b"X: a\r\n", b"a" * 1000 + b"\n"])
async def test_few_lines_are_read_before_a_part(line: bytes) -> None:
    content = CountedContent(line)
    stream = FormStream(content)  # type: ignore[arg-type]
    await stream.readline()
    with pytest.raises(ValueError, match="lines"):
        await read_all(stream)
    assert content.num_lines <= 257


async def read_all(stream: FormStream) -> None:
    while True:
        await stream.readline()
