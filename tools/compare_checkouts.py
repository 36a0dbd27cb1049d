"""Two checkouts of hocket, asked the same: what do clients, operators and dashboards see that has changed?

    .venv/bin/python tools/compare_checkouts.py BEFORE AFTER

Both are built, each with its own .venv. Child processes of each serve the demo model and answer every request of
tools/compared_requests.py; compared are status, headers and body, what commands print, the defaults of the
configuration, and the metrics' names, kinds, help and labels. Ids, times and paths are replaced by what they are. Of a
stream the texts count and which events each choice had in which order, not how many tokens an event holds. Exit status
1: there are differences, all of them are printed.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import hashlib
import hmac
import http.client
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from compared_requests import COMMANDS, KEY, SECRET, SERVERS, Asked, Served  # noqa: E402

START_SECONDS, ANSWER_SECONDS = 120.0, 120.0
STATS_SECONDS = 1.0  # the engine has told its figures by then
ENDED = {"completed", "failed", "expired", "cancelled"}
_UNCOMPARED_HEADERS = {"date", "content-length", "last-modified", "etag", "server"}
_RANDOM = re.compile(
    r"\b(chatcmpl|cmpl|file|batch|batch_req|req|resp|msg|rs|fc|call|toolu)([-_])[0-9a-f]{16,}\b|\b[0-9a-f]{24}\b"
)
_ADDRESS = re.compile(r"127\.0\.0\.1:\d{4,5}")
_OTHER_IDS = ("output_file_id", "error_file_id")
_REMAINING = {"lease_ms"}  # of time: counts down
_CONFIGURATIONS = """
import importlib, json, sys, msgspec
for name in sys.argv[1:]:
    module, _, kind = name.partition(":")
    made = getattr(importlib.import_module(module), kind)
    made = made(model="m") if kind == "EngineConfig" else made()
    print(json.dumps({kind: msgspec.to_builtins(made)}, indent=1, sort_keys=True))
"""

Texts = dict[str, str]  # what was asked -> what is compared


class Checkout:
    """A folder with a tree and its .venv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("HOCKET_", "PYTHON"))}
        return subprocess.run(
            [str(self.folder / ".venv/bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=variables | {"COLUMNS": "120", "XDG_DATA_HOME": "/nowhere"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )

    def module_of(self, kind: str) -> str:
        """Where a class lies, which may have moved."""
        command = ["git", "grep", "-lE", f"^class {kind}\\b", "--", "gateway", "schedcore"]
        found = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout.split()
        assert len(found) == 1, found
        return found[0].removesuffix(".py").replace("/", ".")

    @contextmanager
    def serving(self, options: tuple[str, ...]) -> Iterator[Client]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "secrets").write_text(f"{KEY}:{SECRET}\n")
            options = tuple(option.replace("$", folder) for option in options)
            log = (Path(folder) / "log").open("w+")
            variables = {key: value for key, value in os.environ.items() if not key.startswith(("HOCKET_", "PYTHON"))}
            command = [str(self.folder / ".venv/bin/hocket"), "serve", "demo", "--port", "0"]
            command += ["--data-dir", f"{folder}/data", *options]
            process = subprocess.Popen(command, cwd=self.folder, env=variables, stderr=log)
            try:
                yield Client(_port(Path(log.name), process), self.folder)
            finally:
                process.terminate()
                process.wait(timeout=START_SECONDS)
                log.close()


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + START_SECONDS
    while (match := re.search(r"chat in a browser: http://127\.0\.0\.1:(\d+)/", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return int(match[1])


class Client:
    """Asks one server, and remembers the ids that it gave."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder
        self._ids: dict[str, str] = {}

    def answer(self, asked: Asked) -> str:
        """What is compared of it."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            status, headers, body = self._exchange(asked)
            has_ended = not asked.is_awaited or json.loads(body).get("status", "failed") in ENDED
            if has_ended or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if asked.keep and status == 200:
            self._keep(asked.keep, json.loads(body))
        kept = {key.lower(): value for key, value in headers if key.lower() not in _UNCOMPARED_HEADERS}
        if "retry-after" in kept:
            kept["retry-after"] = "<seconds>"
        lines = [str(status), *(f"{key}: {value}" for key, value in sorted(kept.items()))]
        return self._replaced("\n".join([*lines, "", comparable(body, kept.get("content-type", ""))]))

    def _keep(self, name: str, said: dict[str, Any]) -> None:
        self._ids[name] = said["id"]
        self._ids |= {f"{name}_{key}": said[key] for key in _OTHER_IDS if said.get(key)}

    def metrics(self) -> str:
        time.sleep(STATS_SECONDS)
        _, _, body = self._exchange(Asked("metrics", "/metrics", None, "GET"))
        return "\n".join(sorted(families(body.decode())))

    def _exchange(self, asked: Asked) -> tuple[int, list[tuple[str, str]], bytes]:
        path, body, headers = self._filled(asked.path), asked.body, asked.headers
        if body is not None:
            body = self._filled(body.decode("latin-1")).encode("latin-1")
        if asked.is_signed:
            headers = headers | signature(asked.name, body or b"")
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        try:
            connection.request(asked.method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _filled(self, text: str) -> str:
        return re.sub(r"<(\w+)>", lambda match: self._ids.get(match[1], match[0]), text)

    def _replaced(self, text: str) -> str:
        for name, given in self._ids.items():
            text = text.replace(given, f"<{name}>")
        text = _RANDOM.sub("<id>", text).replace(str(self._folder), "<checkout>")
        return _ADDRESS.sub("<address>", text)


def signature(message_id: str, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks."""
    message_id, now = message_id.replace(" ", "-").replace(".", "-"), str(int(time.time()))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message_id}.{now}.".encode() + body, hashlib.sha256)
    signed = "v1," + base64.b64encode(digest).decode()
    return {"webhook-id": message_id, "webhook-timestamp": now, "webhook-signature": signed}


def comparable(body: bytes, content_type: str) -> str:
    """A body without what is random, as text of many lines."""
    if content_type.startswith("text/event-stream"):
        return "\n".join(stream(body.decode()))
    if content_type.startswith("application/json"):
        return json.dumps(timeless(json.loads(body)), indent=1, ensure_ascii=False)
    if body.startswith(b'{"'):
        rows = timeless([json.loads(line) for line in body.splitlines()])
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return body.decode("utf-8", "backslashreplace")


def timeless(value: Any, key: str = "") -> Any:
    """JSON with times replaced; rows of batches by their ids, since they finish in any order."""
    if isinstance(value, dict):
        return {name: timeless(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        inner = [timeless(item) for item in value]
        is_rows = all(isinstance(item, dict) and "custom_id" in item for item in inner)
        return sorted(inner, key=lambda row: str(row["custom_id"])) if is_rows else inner
    if isinstance(value, float | int) and not isinstance(value, bool):
        if abs(value - time.time()) < 40 * 86400:
            return "<time>"
        if key in _REMAINING:
            return "<remaining>"
    return value


def stream(body: str) -> Iterator[str]:
    """The texts of a stream's choices, then each one's kinds of events in their order, each once; others at the end."""
    texts: dict[str, str] = {}
    shapes: list[tuple[float, str]] = []
    for event in body.split("\n\n"):
        data = event.removeprefix("data: ")
        if not data.startswith("{"):
            shapes.append((math.inf, data))
            continue
        said = timeless(json.loads(data))
        choices = said.get("choices", [])
        for choice in choices:
            gather(texts, choice, str(choice["index"]))
        if choices:
            said.pop("usage", None)  # so far: how far depends on how many tokens the event holds
        shapes.append((choices[0]["index"] if choices else math.inf, json.dumps(said)))
    yield from (f"{key}: {text!r}" for key, text in sorted(texts.items()))
    yield from dict.fromkeys(shape for _, shape in sorted(shapes, key=lambda of: of[0]))


def gather(texts: dict[str, str], value: Any, path: str) -> None:
    """Takes what tokens brought out of a choice: their text, and lists with an entry for each."""
    for key, inner in value.items():
        here = f"{path}.{key}"
        if isinstance(inner, dict):
            gather(texts, inner, here)
        elif isinstance(inner, list) or key in ("content", "text"):
            text = "".join(f"{json.dumps(item)} " for item in inner) if isinstance(inner, list) else inner or ""
            texts[here] = texts.get(here, "") + text
            value[key] = None if inner is None else type(inner)()


def families(text: str) -> Iterator[str]:
    """Of Prometheus' format: kind and help of each metric, and each of its labelled names, without values."""
    for line in text.splitlines():
        if line.startswith("# "):
            yield line
        elif not re.match(r"\S*_created[ {]", line):
            yield _ADDRESS.sub("<address>", line.rsplit(" ", 1)[0])


def printed(checkout: Checkout, command: tuple[str, ...]) -> str:
    done = checkout.run("hocket", *command)
    text = f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return text.replace(str(checkout.folder), "<checkout>")


def defaults(checkout: Checkout) -> str:
    kinds = [f"{checkout.module_of(kind)}:{kind}" for kind in ("GatewayConfig", "EngineConfig")]
    done = checkout.run("python", "-c", _CONFIGURATIONS, *kinds)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(checkout: Checkout, served: Served) -> Texts:
    found = {}
    with checkout.serving(served.options) as client:
        for asked in served.asked:
            found[f"{served.name}: {asked.name}"] = client.answer(asked)
        found[f"{served.name}: metrics"] = client.metrics()
    return found


def everything(checkout: Checkout) -> Texts:
    found = {"defaults of the configuration": defaults(checkout)}
    found |= {" ".join(("hocket", *command)): printed(checkout, command) for command in COMMANDS}
    for served in SERVERS:
        found |= answers(checkout, served)
    return found


def differences(before: Texts, after: Texts) -> Iterator[str]:
    """Texts of whatever is not the same, one for each."""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, "(not asked)"), after.get(name, "(not asked)")
        if old != new:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "after", lineterm="", n=1)
            yield "\n".join([f"=== {name}", *list(lines)[2:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--save", type=Path, help="folder for all that was compared, as before.json and after.json")
    args = parser.parse_args()
    before, after = everything(Checkout(args.before)), everything(Checkout(args.after))
    if args.save is not None:
        args.save.mkdir(parents=True, exist_ok=True)
        for name, texts in (("before", before), ("after", after)):
            (args.save / f"{name}.json").write_text(json.dumps(texts, indent=1, ensure_ascii=False))
    found = list(differences(before, after))
    print("\n\n".join([*found, f"{len(found)} of {len(before)} differ"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
