"""What a model's thinking means for one answer: where its text begins, how thinking is told apart, and grammars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gateway.protocol.chat import ChatRequest, Message
from gateway.protocol.output.output_format import AskedGrammar
from gateway.reasoning.reasoning_format import ReasoningFormat
from gateway.reasoning.thinking_reader import Start, ThinkingReader

TAIL_TOKENS = 32  # of a prompt: they show whether it opens or closes thinking

_FREE = r"FREE: /(.|\n)*/"
_SPACE = r"SPACE: /[ \n]{0,4}/"  # between thinking and the answer


@dataclass(frozen=True, slots=True)
class Thinking:
    format: ReasoningFormat
    start: Start
    marker_ids: Mapping[str, int]  # of marks that are tokens of their own, and no text to a grammar
    shows_special_tokens: bool  # marks are among them

    @classmethod
    def of(
        cls,
        request: ChatRequest,
        reasoning_format: ReasoningFormat,
        prompt_end: str,
        marker_ids: Mapping[str, int],
        shows_special_tokens: bool,
    ) -> Thinking:
        """prompt_end: the last TAIL_TOKENS of the prompt, as text."""
        if request.continue_final_message:
            start = _start_within(reasoning_format, _text(request.messages[-1]))
        else:
            start = _start_after(reasoning_format, prompt_end.rstrip())
        return cls(reasoning_format, start, marker_ids, shows_special_tokens)

    def reader(self) -> ThinkingReader:
        return ThinkingReader(self.format, self.start)

    def grammar(self, asked: AskedGrammar | None) -> AskedGrammar | None:
        """Thinking as the model likes, and then what was asked."""
        if asked is None or self.start is Start.CLOSED:
            return asked
        rules = [f"first: {self._thought()} SPACE", _SPACE]
        if self.start is Start.MAY_OPEN:
            rules[0] = f"first: ({self._mark(self.format.opening)} {self._thought()} SPACE)?"
        rules.append(_FREE if self._ends_in_marker else f"thought[lazy]: {self._until_closing()}")
        grammar = msgspec.structs.replace(asked.grammar, before="\n".join(rules))
        return AskedGrammar(grammar, asked.param)

    @property
    def _ends_in_marker(self) -> bool:
        return self.format.closing in self.marker_ids

    def _thought(self) -> str:
        return f"FREE {self._mark(self.format.closing)}" if self._ends_in_marker else "thought"

    def _until_closing(self) -> str:
        return rf"/(.|\n)*/ {json.dumps(self.format.closing)}"

    def _mark(self, text: str) -> str:
        return f"<[{self.marker_ids[text]}]>" if text in self.marker_ids else json.dumps(text)


def _start_after(reasoning_format: ReasoningFormat, prompt: str) -> Start:
    """Behind a prompt that ends where an answer begins."""
    if prompt.endswith(reasoning_format.opening):
        return Start.OPEN
    if prompt.endswith(reasoning_format.closing):
        return Start.CLOSED
    return Start.OPEN if reasoning_format.is_implicit else Start.MAY_OPEN


def _start_within(reasoning_format: ReasoningFormat, begun: str) -> Start:
    """In an answer that is continued."""
    opened, closed = begun.rfind(reasoning_format.opening), begun.rfind(reasoning_format.closing)
    return Start.OPEN if opened > closed else Start.CLOSED


def _text(message: Message) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.text or "" for part in message.content)
    return message.content or ""
