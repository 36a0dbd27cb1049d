"""House rules that a machine can check (docs/architecture.md, CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_layering import ROOT, tracked

CODE = ("*.py", "*.h", "*.cpp", "*.cu", "*.cuh")
MAX_LINES = 800  # 400 is the aim; twice that means a noun is missing
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
ENVIRONMENT_READERS = {
    "gateway": "gateway/config/environment.py",
    "client/hocket": "client/hocket/_environment.py",
    "schedcore": "schedcore/gguf/gguf_folder.py",
}

TASK_OWNERS = {  # every task of the gateway is awaited by who made it, or supervised; by file: who awaits it
    "gateway/app.py": "the engine's start: awaited when the application is cleaned up",
    "gateway/http/http_server.py": "connections that arrive: awaited by close()",
    "gateway/stock/stock_servers.py": "requests to servers: awaited by close(); the looks at them: a task group",
    "gateway/fleet/fleet_door.py": "handshakes: a task group",
    "gateway/fleet/remote_engine.py": "the connecting: awaited by close()",
    "gateway/node/node_engine.py": "the talk with the engine: awaited by live()",
    "gateway/node/gateway_dialers.py": "looks at names, and dialers: a task group",
    "gateway/node/node_manager.py": "a task group, and what retires an engine: awaited by its loop",
    "gateway/engine/local_engine.py": "the watch over the process: awaited by close()",
    "gateway/answers/responses/background.py": "responses in the background: awaited by cancel() and at the end",
    "gateway/routes/streaming.py": "the first tokens: awaited, or cancelled, by the handler",
    "gateway/base/supervision.py": "supervised tasks themselves",
    "gateway/offline/database/group_commit.py": "a commit that several share: awaited by flush(), tells each its end",
    "gateway/offline/running/runner.py": "a task group, and rows and batches of a run: awaited by it",
    "gateway/offline/store/store.py": "a finalisation that several share: awaited by them and by close()",
    "gateway/offline/database/threads.py": "changes that must end: awaited by who asked and by finish()",
    "gateway/offline/checking/validation.py": "a validation per tenant, its process's start and end: awaited by run()",
    "gateway/offline/running/webhooks.py": "deliveries: awaited by the courier",
}

# One word per thing (the glossary of docs/architecture.md): a word that was given up for another. Where, what instead.
RETIRED = {
    "UnitPool": (("worker", "bench"), "PagedPool, as in the kernels; the core's UnitPool is the list of free units"),
    "VirtualTime": (("bench", "gateway"), "EventQueue: what happens when; FairClock: who is furthest behind"),
    "BatchFeed": (("gateway",), "RowQueue: rows of one batch that wait"),
    "Wish": (("gateway",), "PromptSpec: what differs between the endpoints"),
    "Prepared": (("gateway",), "PreparedRequest"),
    "Notice": (("gateway",), "Announcement: a request was announced and has not come"),
    "SessionReport": (("cpp", "tests/cpp"), "SessionState, as between gateway and engine"),
    "unstored": (
        ("cpp", "tests/cpp"),
        "recomputed: tokens that the next step computes again",
    ),
    "let_go": (("cpp", "tests/cpp"), "release"),
    "is_private": (("cpp", "tests/cpp"), "has_form"),
    "Fewer": (("worker",), "RemainingTokens: of a step, from some layer on"),
    "slot_of_layer": (("worker",), "layer_in_unit; a slot is the host tier's place for a block"),
    "Outcome": (("schedcore",), "SimulatedOutcome, as the core exports it"),
    "recompute_decode": (("kernels", "worker"), "nothing: it is a proof, bench/proofs/recompute_decode"),
}


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_no_file_is_longer_than_twice_the_aim() -> None:
    too_long = {p: len(p.read_text().splitlines()) for p in tracked(*CODE)}
    assert not {p.name: n for p, n in too_long.items() if n > MAX_LINES}


def test_no_leftovers() -> None:
    files = [p for p in tracked(*CODE) if p.name != Path(__file__).name]
    assert not [name for name, path in zip(names(files), files, strict=True) if LEFTOVER.search(path.read_text())]


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_does_not_come_back(word: str) -> None:
    folders, _ = RETIRED[word]
    files = [path for folder in folders for kind in CODE for path in tracked(f"{folder}/{kind}")]
    again = re.compile(rf"(?<![A-Za-z]){word}(?![A-Za-z])")
    assert [name for name, path in zip(names(files), files, strict=True) if again.search(path.read_text())] == []


def reads_environment(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        is_of_os = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        if is_of_os and node.attr in {"environ", "getenv"}:
            return True
    return False


def test_environment_is_read_in_one_file_per_package() -> None:
    for package in ("gateway", "worker", "schedcore", "client/hocket"):
        readers = names([p for p in tracked(f"{package}/*.py") if reads_environment(p)])
        assert set(readers) <= {ENVIRONMENT_READERS.get(package, "")}, readers


def makes_task(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call)
    return is_call and getattr(node.func, "attr", getattr(node.func, "id", "")) in {"create_task", "ensure_future"}


def test_every_task_of_the_gateway_has_an_owner() -> None:
    """A task that nobody keeps and awaits ends silently: what lasts is supervised, the rest has an owner."""
    makers = [p for p in tracked("gateway/*.py") if any(map(makes_task, ast.walk(ast.parse(p.read_text()))))]
    assert set(names(makers)) == set(TASK_OWNERS)


def test_no_task_is_thrown_away() -> None:
    for path in tracked("gateway/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_bare = isinstance(node, ast.Expr) and makes_task(node.value)
            assert not is_bare or "group." in ast.unparse(node), f"{path.name}:{node.lineno}"


def test_every_test_can_fail() -> None:
    silent = []
    for path in tracked("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            if is_test and not any(is_check(inner) for inner in ast.walk(node)):
                silent.append(f"{path.name}:{node.name}")
    assert not silent


def is_check(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in {"raises", "warns", "fail"} or name.startswith(("assert", "check", "expect", "verify"))
    return False
