"""How a family of models writes its calls into its text; values, read by call_reader.py and calls_grammar.py."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    opening: str = ""  # before a call, or a list of calls; empty: the text begins with them
    closing: str = ""  # after each
    is_list: bool = False  # calls stand in one JSON list
    has_bare_names: bool = False  # may also write NAME{arguments}, or NAME[ARGS]{arguments}
    arguments_key: str = "arguments"
    separator: str = ", "  # between calls that no opening separates
    id_length: int = 24  # of letters and digits; templates of some families check it

    @property
    def begins_text(self) -> bool:
        return not self.opening


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", separator="\n")
LLAMA3_JSON = ToolFormat("llama3_json", arguments_key="parameters", separator="; ")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", is_list=True, has_bare_names=True, id_length=9)
JSON = ToolFormat("json", is_list=True)

FORMATS = {tool_format.name: tool_format for tool_format in (HERMES, LLAMA3_JSON, MISTRAL, JSON)}

PYTHON_TAG = "<|python_tag|>"  # Llama 3 may write it before its calls

_SIGNS = (  # in a chat template's source
    (re.compile(r"<function="), None),  # calls as XML: none of ours
    (re.compile(r"<tool_call>"), HERMES),
    (re.compile(r"\[TOOL_CALLS\]"), MISTRAL),
    (re.compile(r"<\|python_tag\|>|\"parameters\": *(?:dictionary|\"? ?~|' ?~)"), LLAMA3_JSON),
)


def format_of(template: str) -> ToolFormat | None:
    """Of a chat template that knows tools: by what it writes. None: it writes what none of ours is."""
    for sign, tool_format in _SIGNS:
        if sign.search(template):
            return tool_format
    return JSON
