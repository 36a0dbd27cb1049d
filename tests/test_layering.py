"""The arrows of docs/architecture.md, enforced: who may import or include whom."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"gateway", "worker", "schedcore", "hocket", "bench"}
MAY_IMPORT = {
    "schedcore": set(),
    "gateway": {"schedcore", "hocket"},  # hocket: the SDK, for `hocket chat`
    "worker": {"schedcore"},
    "client/hocket": set(),
}
FORBIDDEN_THIRD_PARTY = {
    "schedcore": {"torch", "aiohttp"},
    "gateway": {"torch", "transformers"},
    "worker": {"aiohttp", "transformers"},
    "client/hocket": {"torch", "aiohttp", "numpy"},
}


def tracked(*patterns: str) -> list[Path]:
    """Files of the work tree that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_package_imports_only_what_its_layer_may(package: str) -> None:
    files = tracked(f"{package}/*.py")
    assert files, f"no Python files found in {package}"
    itself = package.rsplit("/", 1)[-1]
    for path in files:
        roots = {module.split(".")[0] for module in imported_modules(path)}
        wrong = (roots & OURS) - MAY_IMPORT[package] - {itself}
        wrong |= roots & FORBIDDEN_THIRD_PARTY[package]
        assert not wrong, f"{path.relative_to(ROOT)} must not import {sorted(wrong)}"


def test_only_ops_names_a_kernel() -> None:
    users = [path for path in tracked("*.py") if any("_kernels" in module for module in imported_modules(path))]
    names = {path.relative_to(ROOT).as_posix() for path in users}
    assert {name for name in names if not name.startswith(("tests/", "bench/"))} == {"worker/ops.py"}


def test_only_the_local_engine_knows_where_an_engine_lives() -> None:
    users = {p.name for p in tracked("gateway/*.py") if "schedcore.frame_socket" in imported_modules(p)}
    assert users == {"local_engine.py"}


def includes(path: Path) -> set[str]:
    return set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        (
            "cpp/core",
            r"Python\.h|pybind11|torch|cuda|(chrono|ctime|thread|mutex|atomic|iostream|fstream|cstdio|unistd\.h)$",
        ),
        ("kernels/include", r"Python\.h|pybind11|torch|ATen|c10"),
        ("kernels/cpu", r"Python\.h|pybind11|torch|ATen|c10"),
        ("kernels/cuda", r"Python\.h|pybind11|torch|ATen|c10"),
    ],
)
def test_native_code_stays_in_its_layer(folder: str, banned: str) -> None:
    files = tracked(f"{folder}/*")
    assert files, f"no files found in {folder}"
    for path in files:
        wrong = {header for header in includes(path) if re.match(banned, header)}
        assert not wrong, f"{path.relative_to(ROOT)} must not include {sorted(wrong)}"


@pytest.mark.parametrize("folder", ["kernels", "cpp", "bench", "tests"])
def test_folders_that_are_no_packages(folder: str) -> None:
    assert not list((ROOT / folder).rglob("__init__.py"))
