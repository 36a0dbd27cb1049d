"""The model as it is served: under which names, with which text work, ends and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.embedding.pooler import Pooler
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import Checkpoint, CheckpointError
from gateway.model.tokenize import Tokenizer
from gateway.protocol.errors import NotFoundError
from gateway.reasoning.reasoning_format import ReasoningFormat, named
from gateway.tools.tool_format import FORMATS, JSON, ToolFormat, format_of
from schedcore.api.types import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    names: tuple[str, ...]  # the first is shown to whoever names none
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    stop_token_ids: tuple[int, ...] = ()  # the model's ends of sequence
    sampling: SamplingParams = field(default_factory=SamplingParams)  # the checkpoint's defaults
    tool_format: ToolFormat | None = JSON  # how it writes calls; None: as nobody here can read
    tokenizer_config: dict[str, Any] = field(default_factory=dict)  # the checkpoint's file
    pooler: Pooler = field(default_factory=Pooler)
    adapters: Mapping[str, str] = field(default_factory=dict)  # of `names`, those that are one; their folders
    reasoning_format: ReasoningFormat | None = None  # how it marks its thinking; None: it does not, or nobody asks
    json_has_space: bool = True  # answers by a schema may have whitespace between JSON's tokens

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        names: tuple[str, ...],
        tool_call_parser: str = "auto",
        reasoning_parser: str = "auto",
        pooler_config: str | None = None,
        adapters: Mapping[str, str] | None = None,
        *,
        json_has_space: bool = True,
    ) -> ServedModel:
        """The parsers: a name in their FORMATS, or auto, or for thinking none. Raises CheckpointError."""
        try:
            pooler = Pooler.read(checkpoint.directory, pooler_config)
        except ValueError as error:
            raise CheckpointError(f"{error}.") from None
        tokenizer, source = Tokenizer.load(checkpoint), checkpoint.chat_template
        template = ChatTemplate(source, checkpoint.special_tokens) if source else None
        end = tokenizer.token_id(checkpoint.special_tokens.get("eos_token", ""))
        stop_token_ids = dict.fromkeys([*checkpoint.eos_token_ids, *([] if end is None else [end])])
        return cls(
            names,
            tokenizer,
            template,
            tuple(stop_token_ids),
            checkpoint.sampling,
            _tool_format(template, source or "", tool_call_parser),
            checkpoint.tokenizer_config,
            pooler,
            adapters or {},
            named(reasoning_parser, source or ""),
            json_has_space,
        )

    @property
    def tool_marker_ids(self) -> dict[str, int]:
        """Of what stands around a call, where that is a token of its own and no text to the grammar engine."""
        return {} if self.tool_format is None else self._marker_ids(self.tool_format.marks)

    @property
    def thinking_marker_ids(self) -> dict[str, int]:
        """The same, of what stands around thinking."""
        marked = self.reasoning_format
        return {} if marked is None else self._marker_ids((marked.opening, marked.closing))

    def _marker_ids(self, marks: tuple[str, ...]) -> dict[str, int]:
        return {mark: found for mark in marks if (found := self.tokenizer.marker_id(mark)) is not None}

    def name(self, requested: str | None) -> str:
        """The name to show. Raises NotFoundError if it is not one that is served."""
        if requested is None:
            return self.names[0]
        if requested in self.names:
            return requested
        raise NotFoundError(f"The model '{requested}' does not exist.", param="model", code="model_not_found")


def _tool_format(template: ChatTemplate | None, source: str, parser: str) -> ToolFormat | None:
    """A template that knows no tools is told of them in plain words, and answers in plain JSON."""
    if template is None or not template.knows_tools:
        return JSON
    return format_of(source) if parser == "auto" else FORMATS[parser]
