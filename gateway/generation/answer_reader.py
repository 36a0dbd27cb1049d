"""What a chat's text is read for: thinking first, then calls; whoever needs neither has no reader."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.model.served_model import ServedModel
from gateway.protocol.chat import ChatRequest
from gateway.protocol.generation import asked_grammar
from gateway.protocol.output.output_format import AskedGrammar
from gateway.reasoning.thinking import TAIL_TOKENS, Thinking
from gateway.reasoning.thinking_reader import ThinkingReader
from gateway.tools.call_reader import CallReader, Pieces
from gateway.tools.tool_use import ToolUse


class AnswerReader:
    def __init__(self, thinking: ThinkingReader | None, calls: CallReader | None) -> None:
        self._thinking = thinking
        self._calls = calls

    @property
    def num_calls(self) -> int:
        return 0 if self._calls is None else self._calls.num_calls

    def feed(self, text: str, *, is_end: bool = False) -> Pieces:
        """What is told by now; at the end, all."""
        reasoning = ""
        if self._thinking is not None:
            reasoning, text = self._thinking.feed(text, is_end=is_end)
        pieces = Pieces(text) if self._calls is None else self._calls.feed(text, is_end=is_end)
        pieces.reasoning = reasoning
        return pieces


@dataclass(frozen=True, slots=True)
class Reading:
    """Of a chat's answers."""

    thinking: Thinking | None = None
    tools: ToolUse | None = None
    json_has_space: bool = True

    @classmethod
    def of(cls, model: ServedModel, chat: ChatRequest, prompt: list[int]) -> Reading:
        """Raises InvalidRequestError."""
        tools = ToolUse.of(chat, model.tool_format, model.tool_marker_ids) if chat.calls_tools else None
        if model.reasoning_format is None:
            return cls(None, tools, model.json_has_space)
        end, markers = model.tokenizer.decode(prompt[-TAIL_TOKENS:], False), model.thinking_marker_ids
        shows_special = any(marker in model.tokenizer.special_ids for marker in markers.values())
        thinking = Thinking.of(chat, model.reasoning_format, end, markers, shows_special)
        return cls(thinking, tools, model.json_has_space)

    @property
    def shows_special_tokens(self) -> bool:
        """Marks are told by them."""
        return any(part is not None and part.shows_special_tokens for part in (self.thinking, self.tools))

    def reader(self) -> AnswerReader | None:
        """None: all is content."""
        if self.thinking is None and self.tools is None:
            return None
        return AnswerReader(
            None if self.thinking is None else self.thinking.reader(),
            None if self.tools is None else self.tools.reader(),
        )

    def read(self, text: str) -> Pieces:
        """A whole answer."""
        reader = self.reader()
        return Pieces(text) if reader is None else reader.feed(text, is_end=True)

    def grammar(self, chat: ChatRequest, format_param: str = "response_format") -> AskedGrammar | None:
        """Of the whole text. Raises InvalidRequestError."""
        asked = asked_grammar(chat, format_param)
        asked = asked if asked is None or self.json_has_space else asked.without_space()
        asked = asked if self.tools is None else self.tools.grammar(asked)
        return asked if self.thinking is None else self.thinking.grammar(asked)


ALL_CONTENT = Reading()
