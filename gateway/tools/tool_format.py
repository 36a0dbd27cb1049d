"""How a family of models writes its calls into its text; values, read by call_reader.py and calls_grammar.py."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Head:
    """What has a call's name and stands before its arguments, where no object has both."""

    whole: re.Pattern[str]  # group 1 is the name; arguments follow
    begun: re.Pattern[str]  # of what may become one
    before_name: str = ""  # as grammars write it; without after_name they write an object instead
    after_name: str = ""
    after_arguments: str = ""


@dataclass(frozen=True, slots=True)
class Tags:
    """Of a call that has a tag for each parameter, its value as text: strings as they are, all else as JSON."""

    call: str  # before the name; empty: the format's opening is
    name_end: str  # empty: the name ends where the next tag begins
    key: str
    key_end: str
    value: str  # empty: a value begins where its key ends
    value_end: str
    call_end: str  # empty: the format's closing is
    gap: str = "\n"  # between tags
    padding: str = ""  # on both sides of a value
    says_kind: bool = False  # the key's tag says whether the value is a string

    def marks(self) -> tuple[str, ...]:
        return (self.call, self.name_end, self.key, self.key_end, self.value, self.value_end, self.call_end)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    opening: str = ""  # before a call, or a list of calls; empty: the text begins with them
    closing: str = ""  # after each, or after the list
    is_section: bool = False  # opening and closing stand around several calls
    inner_marks: tuple[str, ...] = ()  # around each of them
    is_list: bool = False  # calls stand in one JSON list
    head: Head | None = None
    tags: Tags | None = None
    arguments_key: str = "arguments"
    separator: str = ", "  # between calls, or between a closing and an opening
    gap: str = "\n"  # within opening and closing
    id_length: int = 24  # of letters and digits; templates of some families check it

    @property
    def begins_text(self) -> bool:
        return not self.opening

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be a token of its own."""
        tags = () if self.tags is None else self.tags.marks()
        head = () if self.head is None else (SEPARATOR,)
        return tuple(mark for mark in (self.opening, self.closing, *self.inner_marks, *tags, *head) if mark)


SEPARATOR = "<｜tool▁sep｜>"  # DeepSeek's, beside a name
_MISTRAL_HEAD = Head(
    re.compile(r"([a-zA-Z0-9_.\-]{1,128})(?:\[CALL_ID\][a-zA-Z0-9]{0,64})?(?:\[ARGS\])?\s{0,9}(?=\{)"),
    re.compile(r"[a-zA-Z0-9_.\-]{1,128}(?:\[[A-Z_]{0,7}\]?[a-zA-Z0-9]{0,64}){0,2}\s{0,9}"),
)
_DEEPSEEK_WHOLE = re.compile(
    rf"(?:function{SEPARATOR})?([a-zA-Z0-9_.\-]{{1,128}})\s{{0,9}}(?:{SEPARATOR})?\s{{0,9}}(?:```json)?\s{{0,9}}(?=\{{)"
)
_DEEPSEEK_BEGUN = re.compile(r"[^{]{0,300}")

HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", separator="\n")
LLAMA3_JSON = ToolFormat("llama3_json", arguments_key="parameters", separator="; ")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", is_list=True, head=_MISTRAL_HEAD, id_length=9)
JSON = ToolFormat("json", is_list=True)

_FUNCTION = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", padding="\n")
QWEN3_CODER = ToolFormat("qwen3_coder", "<tool_call>", "</tool_call>", tags=_FUNCTION, separator="\n")
SEED_OSS = ToolFormat(
    "seed_oss",
    "<seed:tool_call>",
    "</seed:tool_call>",
    tags=Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>"),
    separator="\n",
)
GLM45 = ToolFormat(
    "glm45",
    "<tool_call>",
    "</tool_call>",
    tags=Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", ""),
    separator="\n",
    gap="",
)
GLM47 = ToolFormat(
    "glm47",
    "<tool_call>",
    "</tool_call>",
    tags=Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "", gap=""),
    separator="",
    gap="",
)
MINIMAX_M2 = ToolFormat(
    "minimax_m2",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    is_section=True,
    tags=Tags('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>"),
    separator="\n",
)
DEEPSEEK_V3 = ToolFormat(
    "deepseek_v3",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    is_section=True,
    inner_marks=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    head=Head(_DEEPSEEK_WHOLE, _DEEPSEEK_BEGUN, f"function{SEPARATOR}", "\n```json\n", "\n```"),
    separator="\n",
    gap="",
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    is_section=True,
    inner_marks=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    head=Head(_DEEPSEEK_WHOLE, _DEEPSEEK_BEGUN, "", SEPARATOR, ""),
    separator="",
    gap="",
)
DEEPSEEK_V32 = ToolFormat(
    "deepseek_v32",
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    is_section=True,
    tags=Tags(
        '<｜DSML｜invoke name="',
        '">',
        '<｜DSML｜parameter name="',
        '">',
        "",
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        says_kind=True,
    ),
    separator="\n",
)

FORMATS = {
    tool_format.name: tool_format
    for tool_format in (
        *(HERMES, LLAMA3_JSON, MISTRAL, JSON, QWEN3_CODER, SEED_OSS, GLM45, GLM47, MINIMAX_M2),
        *(DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32),
    )
}
SPECIAL = (LLAMA3_JSON, DEEPSEEK_V32)  # told by special tokens that are no marks of their own

PYTHON_TAG = "<|python_tag|>"  # Llama 3 may write it before its calls

_SIGNS = (  # in a chat template's source
    (re.compile(r"<minimax:tool_call>"), MINIMAX_M2),
    (re.compile(r"<seed:tool_call>"), SEED_OSS),
    (re.compile(r"｜DSML｜"), DEEPSEEK_V32),
    (re.compile(r"(?s)tool▁calls▁begin.*```json"), DEEPSEEK_V3),
    (re.compile(r"tool▁calls▁begin"), DEEPSEEK_V31),
    (re.compile(r"</arg_key><arg_value>"), GLM47),
    (re.compile(r"<arg_key>"), GLM45),
    (re.compile(r"(?s)<tool_call>.*<parameter="), QWEN3_CODER),
    (re.compile(r"<function="), None),  # another kind of XML: none of ours
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
