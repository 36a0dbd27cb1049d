"""The chunks of a streamed text completion: text (the echoed prompt first), finish reason, usage."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from gateway.answers.chunks import Chunks
from gateway.answers.logprobs import CompletionLogprobsWriter
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest
from gateway.http.sse import event
from gateway.model.tokenize import Tokenizer
from gateway.protocol.completions import CompletionChoice, CompletionChunk, CompletionRequest
from gateway.protocol.response import ResponseHead, Usage


class CompletionChunks(Chunks):
    def __init__(
        self,
        head: ResponseHead,
        request: CompletionRequest,
        prepared: PreparedRequest,
        tokenizer: Tokenizer,
        echoes: list[str] | None,
    ) -> None:
        """`echoes`: the prompts' texts, if they are to be shown."""
        super().__init__(head, request, prepared, tokenizer, request.logprobs is not None)
        self._echoes = echoes
        as_ids = bool(request.return_tokens_as_token_ids)
        self._logprobs = [CompletionLogprobsWriter(tokenizer, request.logprobs or 0, as_ids) for _ in prepared.choices]

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._event([CompletionChoice(index, text, None)])

    def _rich_chunk(self, choice: Choice, text: str) -> bytes:
        entries = choice.take_logprobs()
        token_ids = choice.take_token_ids()
        if not (text or entries or token_ids or choice.finish_reason is None):
            return b""
        logprobs = self._logprobs[choice.index].output(entries) if self._has_logprobs else None
        shown_ids = token_ids if self._has_token_ids else UNSET
        return self._event([CompletionChoice(choice.index, text, None, logprobs, shown_ids)])

    def _opening(self, choice: Choice) -> bytes:
        """The echo, and the prompt's tokens if they were asked for."""
        if self._echoes is None and not self._has_token_ids:
            return b""
        prompt = self._prepared.prompts[choice.prompt_index]
        text, logprobs = "", None
        if self._echoes is not None:
            text = self._echoes[choice.prompt_index]
            if self._has_logprobs:
                logprobs = self._logprobs[choice.index].prompt(prompt, choice.prompt_logprobs)
        shown_ids = prompt if self._has_token_ids else UNSET
        return self._event([CompletionChoice(choice.index, text, None, logprobs, UNSET, shown_ids)])

    def _closing(self, choice: Choice) -> bytes:
        return self._event([CompletionChoice(choice.index, "", choice.finish_reason)])

    def _usage_chunk(self, usage: Usage) -> bytes:
        return self._event([], usage)

    def _event(self, choices: list[CompletionChoice], usage: Usage | None = None) -> bytes:
        chunk = CompletionChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            service_tier=self._head.service_tier,
            usage=(usage or self._usage_so_far()) if self._has_usage else UNSET,
        )
        return event(msgspec.json.encode(chunk))
