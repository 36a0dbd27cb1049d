"""Pieces of llguidance's Lark: texts, marks that are tokens of their own, schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from schedcore.grammar.json_schema import followable_tree
from schedcore.grammar.source import json_options

MarkerIds = Mapping[str, int]  # marks that are single tokens, which stand outside of text


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def spelled(text: str, marker_ids: MarkerIds) -> str:
    """Text with marks in it; empty for none."""
    if not marker_ids:
        return literal(text) if text else ""
    marks = "|".join(re.escape(mark) for mark in sorted(marker_ids, key=len, reverse=True))
    parts = [part for part in re.split(f"({marks})", text) if part]
    return " ".join(f"<[{marker_ids[part]}]>" if part in marker_ids else literal(part) for part in parts)


def json_of(schema: dict[str, Any] | bool, *, has_space: bool = True) -> str:
    """A value of that schema."""
    if isinstance(schema, dict):
        schema = {**followable_tree(schema), "x-guidance": json_options(has_space=has_space)}
    return f"%json {json.dumps(schema)}"
