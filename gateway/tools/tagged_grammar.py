"""A call with a tag for each parameter, as rules of a grammar: which tags, and what may stand between them.

Strings stand there as they are, so that what they may be is a regular expression that knows where they end; all other
values are JSON. What cannot be said so is refused by its keyword.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.tools import Function
from gateway.tools.lark import MarkerIds, json_of, literal, spelled
from gateway.tools.parameter_kinds import kinds_of, referred
from gateway.tools.tool_format import Tags

_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$id"}
_DEFINITIONS = {"$defs", "definitions"}
_OF_PARAMETERS = _NOTES | _DEFINITIONS | {"type", "properties", "required", "additionalProperties", "$schema"}
_OF_STRINGS = _NOTES | {"type", "minLength", "maxLength", "pattern"}
_ANY = r"(.|\n)"
_KEY = re.compile(r"[^<>\"\s]([^<>\"\n]*[^<>\"\s])?")
_FREE_KEY = "/[a-zA-Z0-9_]{1,64}/"
_MAX_FREE_KEYS = 16
_MAX_DEPTH = 16  # of references and choices


def tagged_call(tags: Tags, function: Function, rule: str, marker_ids: MarkerIds) -> list[str]:
    """Rules; the first is named so. Raises InvalidRequestError."""
    return _TaggedCall(tags, function, rule, marker_ids).rules()


@dataclass(slots=True)
class _TaggedCall:
    tags: Tags
    function: Function
    rule: str
    marker_ids: MarkerIds
    key: str = ""  # of the parameter that is written
    further: list[str] = field(default_factory=list)  # rules

    def rules(self) -> list[str]:
        tags = self.tags
        begin = self._spelled(f"{tags.call}{self.function.name}{tags.name_end}")
        body = " ".join([begin, *self._parameters(), self._spelled(tags.gap + tags.call_end)])
        return [f"{self.rule}: {body}", *self.further]

    def _parameters(self) -> Iterable[str]:
        schema = self.function.parameters
        if schema is None:
            return
        self._refuse_others(schema, _OF_PARAMETERS)
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not isinstance(properties, Mapping):
            if schema.get("additionalProperties") is not False:
                yield f"({self._parameter(_FREE_KEY, True)}){{0,{_MAX_FREE_KEYS}}}"
            return
        for key in dict.fromkeys([*properties, *required]):
            self.key = key
            if not _KEY.fullmatch(key):
                raise self._refusal("a name of these characters")
            written = self._parameter(literal(key), properties.get(key, True))
            yield written if key in required else f"({written})?"

    def _parameter(self, key: str, schema: Any) -> str:
        """key: as Lark."""
        tags = self.tags
        strings, others = self._values(schema, 0)
        head = f"{self._spelled(tags.gap + tags.key)} {key}"
        value = tags.gap + tags.value if tags.value else ""
        written = []
        for is_string, options in ((True, strings), (False, others)):
            key_end = f'" string="{str(is_string).lower()}{tags.key_end}' if tags.says_kind else tags.key_end
            if options:
                written.append(f"{self._spelled(key_end + value + tags.padding)} ({' | '.join(options)})")
        return f"{head} ({' | '.join(written)})"

    def _values(self, schema: Any, depth: int) -> tuple[list[str], list[str]]:
        """Strings and others, each with what ends it."""
        if not isinstance(schema, Mapping):
            return [self._free()], []
        root = self.function.parameters or {}
        told = {key for key in schema if key not in _NOTES}
        if not told:
            return [self._free()], []
        if "string" not in kinds_of(schema, root):
            return [], [self._json(schema)]
        if depth > _MAX_DEPTH:
            raise self._refusal("a schema of that depth")
        if "$ref" in schema:
            return self._values(referred(schema["$ref"], root), depth + 1)
        if "const" in schema or "enum" in schema:
            return self._chosen([schema["const"]] if "const" in schema else schema["enum"])
        if len(told) == 1 and told <= {"anyOf", "oneOf", "allOf"}:
            parts = schema[told.pop()]
            if "allOf" not in schema or len(parts) == 1:
                return self._either(parts, depth)
        types = schema.get("type")
        if isinstance(types, list):
            return self._either([{**schema, "type": one} for one in types], depth)
        if types != "string":
            raise self._refusal(f"'{min(told)}' without one 'type'")
        return [self._string(schema)], []

    def _either(self, parts: list[Any], depth: int) -> tuple[list[str], list[str]]:
        found = [self._values(part, depth + 1) for part in parts]
        strings, others = (list(dict.fromkeys(value for one in found for value in one[i])) for i in (0, 1))
        return strings, others

    def _chosen(self, values: list[Any]) -> tuple[list[str], list[str]]:
        strings = [value for value in values if isinstance(value, str)]
        if any(self.tags.value_end in value for value in strings):
            raise self._refusal(f"a choice with {self.tags.value_end} in it")
        others = [value for value in values if not isinstance(value, str)]
        end = self._spelled(self.tags.padding + self.tags.value_end)
        return [f"{literal(value)} {end}" for value in strings], [self._json({"enum": others})] if others else []

    def _json(self, schema: Mapping[str, Any]) -> str:
        root = self.function.parameters or {}
        definitions = {key: root[key] for key in _DEFINITIONS if key in root}
        return f"{json_of({**schema, **definitions})} {self._spelled(self.tags.padding + self.tags.value_end)}"

    def _free(self) -> str:
        """Any text, up to the first end of a value."""
        return self._text(_ANY + "*")

    def _string(self, schema: Mapping[str, Any]) -> str:
        known = _OF_STRINGS if self.function.strict else _OF_STRINGS | {"format"}  # which is a note, then
        self._refuse_others(schema, known)
        if not {"minLength", "maxLength", "pattern"} & schema.keys():
            return self._free()
        text = f"{_ANY}{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
        if "pattern" not in schema:
            return self._text(text)
        return self._text(f"{_unanchored(schema['pattern'])}", text)

    def _text(self, *patterns: str) -> str:
        """Of all those patterns, and what ends it. That is a part of the expression where it is text as well: a string
        ends where that stands for the first time, and nowhere else."""
        name, end = f"{self.rule.upper()}_{len(self.further)}", self.tags.value_end
        escaped = re.escape(end).replace("/", r"\/")
        if end in self.marker_ids:
            whole = [f"/{pattern}/" for pattern in patterns]
            self.further.append(f"{name}: {' & '.join(whole)} & ~/{_ANY}*{escaped}{_ANY}*/")
            return f"{name} {self._spelled(end)}"
        closed = [f"/({pattern}){self.tags.padding}{escaped}/" for pattern in patterns]
        self.further.append(f"{name}: {' & '.join(closed)} & ~/{_ANY}*{escaped}{_ANY}+/")
        return name

    def _spelled(self, text: str) -> str:
        return spelled(text, self.marker_ids)

    def _refuse_others(self, schema: Mapping[str, Any], known: set[str]) -> None:
        for keyword in sorted(schema.keys() - known):
            raise self._refusal(f"'{keyword}'")

    def _refusal(self, what: str) -> InvalidRequestError:
        where = f"parameter '{self.key}' of function" if self.key else "function"
        return InvalidRequestError(
            f"This model writes calls with a tag for each parameter, where {what} cannot be promised: {where} "
            f"'{self.function.name}'. Leave it out, or ask with 'tool_choice' auto and without 'strict'.",
            param="tools",
            code="unsupported",
        )


def _unanchored(pattern: str) -> str:
    """JSON schema searches; an expression here is the whole text."""
    start = "" if pattern.startswith("^") else _ANY + "*"
    end = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else _ANY + "*"
    inner = pattern.removeprefix("^")
    inner = (inner[:-1] if not end else inner).replace("/", r"\/").replace(r"\\/", r"\/")
    return f"{start}({inner}){end}"
