"""A server behind TLS, and on a Unix socket."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from fakes.byte_tokenizer import write_byte_checkpoint
from fakes.served import ROOT

BODY = json.dumps({"prompt": "Hello", "max_tokens": 3})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *named)
    subprocess.run((*made, "-keyout", key, "-out", certificate), check=True, capture_output=True)
    return certificate, key


@contextmanager
def said_by(folder: Path, *arguments: str, until: str) -> Iterator[str]:
    """What the server wrote until then. Its engine is a fake worker."""
    model = str(write_byte_checkpoint(folder / "bytes"))
    command = [sys.executable, "-m", "fakes.fake_serve", model, "--no-offline", *arguments]
    environment: dict[str, Any] = {"cwd": ROOT / "tests", "env": {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **environment) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if until in line:
                break
        yield said
        process.terminate()
        process.communicate()


def test_https_serves_answers_and_streams(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    flags = ("--port", "0", "--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1]))
    with said_by(tmp_path, *flags, until="try:") as said:
        found = re.search(r"https://127\.0\.0\.1:(\d+)", said)
        assert found, said
        context = ssl.create_default_context(cafile=str(certificate[0]))
        with openai.DefaultHttpxClient(verify=context) as transport:
            client = openai.OpenAI(base_url=f"{found[0]}/v1", api_key="none", http_client=transport, max_retries=0)
            asked: dict[str, Any] = {"model": "bytes", "prompt": "Hello", "max_tokens": 20}
            whole = client.completions.create(**asked).choices[0].text
            parts = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
            assert len(whole) == len("".join(parts)) > 0
        with socket.create_connection(("127.0.0.1", int(found[1]))) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/1.1 200" not in plain.recv(4096)


def test_a_unix_socket_serves_and_its_place_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(2):
        with said_by(tmp_path, "--uds", str(path), until="try:") as said:
            assert f"listening on {path}" in said
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.connect(str(path))
            connection.request("POST", "/v1/completions", BODY, {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert json.load(answer)["choices"][0]["text"]
            connection.request("GET", "/ping")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            connection.request("GET", "/load")
            assert json.load(connection.getresponse()) == {"server_load": 0}
            connection.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--ssl-certfile", "absent.pem"), "hocket serve: TLS: absent.pem cannot be read: No such file or directory\n"),
        (("--ssl-keyfile", "absent.pem"), "hocket serve: ssl_keyfile needs ssl_certfile\n"),
        (
            ("--uds", "/no/such/folder/s"),
            "hocket serve: cannot listen on /no/such/folder/s: No such file or directory\n",
        ),
    ],
)
def test_what_cannot_be_listened_on_is_one_line(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    with said_by(tmp_path, *flags, "--port", "0", until="hocket serve:") as said:
        assert said == words
