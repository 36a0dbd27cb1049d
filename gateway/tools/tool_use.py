"""What a chat request's tools mean for its answer: what it may be, and how calls are found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.protocol.chat import ChatRequest
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.output_format import AskedGrammar
from gateway.protocol.output.tools import Function, ToolChoice
from gateway.tools.call_reader import CallReader
from gateway.tools.calls_grammar import answer_or_calls, calls_grammar, strict_grammar
from gateway.tools.lark import MarkerIds
from gateway.tools.tool_format import SPECIAL, ToolFormat
from schedcore.api.types import GrammarKind


@dataclass(frozen=True, slots=True)
class ToolUse:
    tool_format: ToolFormat
    functions: Sequence[Function]  # that may be called
    is_forced: bool  # a call has to come
    is_parallel: bool  # several may come
    marker_ids: MarkerIds

    @classmethod
    def of(cls, request: ChatRequest, tool_format: ToolFormat | None, marker_ids: MarkerIds) -> ToolUse | None:
        """None where nothing is called. tool_format: None: of no kind that is read. Raises InvalidRequestError."""
        if not request.calls_tools:
            return None
        if tool_format is None:
            raise InvalidRequestError(
                "'tools' is not supported: this model's chat template writes calls in a form that this server does not "
                "know by itself; name one with --tool-call-parser.",
                param="tools",
                code="unsupported",
            )
        choice = request.tool_choice
        functions = [tool.function for tool in request.tools or ()]
        if isinstance(choice, ToolChoice):
            functions = [function for function in functions if function.name == choice.function.name]
            return cls(tool_format, functions, True, False, marker_ids)
        is_parallel = request.parallel_tool_calls is not False
        return cls(tool_format, functions, choice == "required", is_parallel, marker_ids)

    @property
    def shows_special_tokens(self) -> bool:
        """Calls are told by them."""
        return bool(self.marker_ids) or self.tool_format in SPECIAL

    def reader(self) -> CallReader:
        schemas = {function.name: function.parameters for function in self.functions}
        return CallReader(self.tool_format, schemas, None if self.is_parallel else 1)

    def grammar(self, asked: AskedGrammar | None) -> AskedGrammar | None:
        """asked: for an answer without calls. Raises InvalidRequestError."""
        if self.is_forced:
            return AskedGrammar(
                calls_grammar(self.tool_format, self.functions, self.is_parallel, self.marker_ids), "tools"
            )
        if asked is None:
            if not any(function.strict for function in self.functions):
                return None
            return AskedGrammar(
                strict_grammar(self.tool_format, self.functions, self.is_parallel, self.marker_ids), "tools"
            )
        if asked.grammar.kind is not GrammarKind.JSON_SCHEMA:
            raise InvalidRequestError(
                f"'{asked.param}' leaves no room for calls: send no 'tools', or 'tool_choice' none.", param=asked.param
            )
        grammar = answer_or_calls(asked.grammar, self.tool_format, self.functions, self.is_parallel, self.marker_ids)
        return AskedGrammar(grammar, asked.param)
