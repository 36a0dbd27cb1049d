"""Texts of models -> thinking and answer, whole and cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.held_text import MAX_SPACE
from gateway.generation.answer_reader import AnswerReader
from gateway.reasoning.reasoning_format import DEEPSEEK_R1, FORMATS, MISTRAL, THINK, format_of, named
from gateway.reasoning.thinking_reader import Start, ThinkingReader
from gateway.tools.call_reader import CallReader
from gateway.tools.tool_format import HERMES

SPACE = "\n" * MAX_SPACE
# format, start, text, thinking, answer
CASES = [
    ("qwen3", Start.MAY_OPEN, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("qwen3", Start.MAY_OPEN, " \n<think>Hm. </think>Yes.\n", "Hm.", "Yes.\n"),
    ("qwen3", Start.MAY_OPEN, "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
    ("qwen3", Start.MAY_OPEN, "  Yes", "", "  Yes"),
    ("qwen3", Start.MAY_OPEN, f"{SPACE}<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("qwen3", Start.MAY_OPEN, f"{SPACE} <think>Hm.</think>Yes.", "", f"{SPACE} <think>Hm.</think>Yes."),
    ("qwen3", Start.OPEN, f"{SPACE} Hm.</think>Yes.", "Hm.", "Yes."),
    ("qwen3", Start.MAY_OPEN, "<thi", "", "<thi"),
    ("qwen3", Start.MAY_OPEN, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("qwen3", Start.MAY_OPEN, "", "", ""),
    ("qwen3", Start.OPEN, "\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("qwen3", Start.OPEN, "Hm. <b> </thin\nmore", "Hm. <b> </thin\nmore", ""),
    ("qwen3", Start.OPEN, "<think>\nHm.</think>Yes.", "Hm.", "Yes."),  # opened twice
    ("qwen3", Start.OPEN, "a</think>b</think>c", "a", "b</think>c"),
    ("qwen3", Start.OPEN, "cut off \n", "cut off", ""),
    ("qwen3", Start.CLOSED, "<think>a</think> b", "", "<think>a</think> b"),
    ("deepseek_r1", Start.OPEN, "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("mistral", Start.MAY_OPEN, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ("seed_oss", Start.MAY_OPEN, "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
]


def read(reader: ThinkingReader, parts: list[str]) -> tuple[str, str]:
    told = [reader.feed(part, is_end=i == len(parts) - 1) for i, part in enumerate(parts)]
    return "".join(thinking for thinking, _ in told), "".join(answer for _, answer in told)


@pytest.mark.parametrize(("name", "start", "text", "thinking", "answer"), CASES)
def test_whole_texts_and_single_characters(name: str, start: Start, text: str, thinking: str, answer: str) -> None:
    assert read(ThinkingReader(FORMATS[name], start), [text]) == (thinking, answer)
    assert read(ThinkingReader(FORMATS[name], start), [*text, ""]) == (thinking, answer)


def test_whitespace_without_end_is_told() -> None:
    reader = ThinkingReader(THINK, Start.MAY_OPEN)
    told = [reader.feed(" ") for _ in range(MAX_SPACE + 2)]
    assert told == [*[("", "")] * MAX_SPACE, ("", " " * (MAX_SPACE + 1)), ("", " ")]
    assert reader.has_ended


PARTS = st.sampled_from(
    [SPACE, "<think>", "</think>", "[THINK]", "[/THINK]", "<", "/", "think", " ", "\n", "a", "word"]
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@given(
    st.lists(PARTS | st.just(CALL), max_size=12).map("".join),
    st.lists(st.integers(0, 400), max_size=8),
    st.sampled_from(Start),
    st.sampled_from([THINK, MISTRAL]),
    st.booleans(),
)
def test_however_a_text_is_cut(text: str, cuts: list[int], start: Start, reasoning_format: object, calls: bool) -> None:
    def told(parts: list[str]) -> tuple[str, str, str]:
        thinking = ThinkingReader(reasoning_format, start)  # type: ignore[arg-type]
        reader = AnswerReader(thinking, CallReader(HERMES, {"add"}) if calls else None)
        pieces = [reader.feed(part, is_end=i == len(parts) - 1) for i, part in enumerate(parts)]
        arguments = "".join(call.arguments for piece in pieces for call in piece.calls)
        return "".join(p.reasoning for p in pieces), "".join(p.content for p in pieces), arguments

    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cut = [text[a:b] for a, b in itertools.pairwise(places)]
    assert told(cut) == told([text]) == told([*text, ""])


def test_formats_of_templates() -> None:
    assert format_of("{{ content.split('</think>')[-1] }}") is THINK
    assert format_of("[THINK]{{ thinking }}[/THINK]") is MISTRAL
    assert format_of("{{ messages }}") is None
    assert named("auto", "</think>") is THINK
    assert named("none", "</think>") is None
    assert named("deepseek_r1", "") is DEEPSEEK_R1
