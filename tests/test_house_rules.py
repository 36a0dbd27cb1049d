"""House rules that a machine can check (docs/architecture.md, CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from test_layering import ROOT, tracked

CODE = ("*.py", "*.h", "*.cpp", "*.cu", "*.cuh")
MAX_LINES = 800  # 400 is the aim; twice that means a noun is missing
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
ENVIRONMENT_READERS = {"gateway": "gateway/environment.py", "client/hocket": "client/hocket/_environment.py"}


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_no_file_is_longer_than_twice_the_aim() -> None:
    too_long = {p: len(p.read_text().splitlines()) for p in tracked(*CODE)}
    assert not {p.name: n for p, n in too_long.items() if n > MAX_LINES}


def test_no_leftovers() -> None:
    files = [p for p in tracked(*CODE) if p.name != Path(__file__).name]
    assert not [name for name, path in zip(names(files), files, strict=True) if LEFTOVER.search(path.read_text())]


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
