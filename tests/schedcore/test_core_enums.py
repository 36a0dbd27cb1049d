"""Enumerations of the core: the stub says what the module has, and no other file defines one of them again."""

from __future__ import annotations

import ast
import enum
from functools import cache

import pytest
from test_layering import ROOT, tracked

from schedcore import _core

ENUMS = sorted(name for name, value in vars(_core).items() if isinstance(value, enum.EnumMeta))


@cache
def classes(path: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("name", ENUMS)
def test_the_stub_has_the_members_of_the_module(name: str) -> None:
    body = classes("schedcore/_core.pyi")[name].body
    written = {node.targets[0].id: node.value for node in body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    members = {member.name: member.value for member in getattr(_core, name)}
    assert [*written] == [*members]
    values = {key: node.value for key, node in written.items() if isinstance(node, ast.Constant)}
    assert all(values[key] in (members[key], ...) for key in members)


def test_an_enumeration_of_the_core_is_defined_there_only() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in tracked("*.py")]
    again = {name: [path for path in files if name in classes(path)] for name in ENUMS}
    assert {name: paths for name, paths in again.items() if paths} == {}
