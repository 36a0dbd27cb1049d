"""`hocket batch` and `client.batches.run` against the whole server: files, database, engine and webhook."""

from __future__ import annotations

import json
import secrets
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fakes.served import Server, serving
from gateway.cli.main import main
from gateway.config.standard_webhooks import WebhookSecret, verify
from hocket import Client

SECRET = "whsec_" + b64encode(secrets.token_bytes(32)).decode()


class Hook(HTTPServer):
    """Takes webhooks in a thread of its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HookHandler)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.has_some = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class HookHandler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((dict(self.headers), body))
        self.server.has_some.set()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        thread = threading.Thread(target=hook.serve_forever)
        thread.start()
        yield hook
        hook.shutdown()
        thread.join()


@pytest.fixture
def served(tmp_path: Path, hook: Hook) -> Iterator[Server]:
    (tmp_path / "secret").write_text(SECRET)
    options = ("--webhook-secret-file", str(tmp_path / "secret"), "--webhook-url", hook.url)
    with serving(tmp_path, *options) as server:
        yield server


def test_prompts_to_answers_and_a_signed_webhook(
    served: Server, hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOCKET_BASE_URL", served.url)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("What is 7 + 5?\n\nName a colour.\n")
    output = tmp_path / "answers.jsonl"
    words = ["batch", "submit", "--prompts", str(prompts), "--max-tokens", "8", "--watch", "-o", str(output), "--json"]
    assert main(words) == 0
    batch = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["line-1", "line-3"]
    assert all(line["response"]["body"]["choices"][0]["message"]["content"] for line in lines)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 2)
    assert hook.has_some.wait(30)
    headers, body = hook.received[0]
    event = json.loads(body)
    assert (event["type"], event["data"]) == ("batch.completed", {"id": batch["id"]})
    assert verify([WebhookSecret.parse(SECRET)], headers, body, event["created_at"]).id == event["id"]


def test_a_run_yields_while_its_batches_work_and_the_same_again_when_resumed(served: Server) -> None:
    questions = [f"What is {n} + {n}?" for n in range(300)]
    with Client(served.url) as client:
        run = client.batches.run(iter(questions), params={"max_tokens": 4, "temperature": 0}, rows_per_batch=100)
        first = next(run)
        assert not all(batch.is_over for batch in run.batches) or len(run.batches) < 3
        results = {result.index: result for result in [first, *run]}
        assert sorted(results) == list(range(300))
        assert all(result.is_ok and result.usage for result in results.values())
        again = list(client.batches.run(resume=run.batch_ids, order="input"))
    assert [(result.index, result.text) for result in again] == [(n, results[n].text) for n in range(300)]
