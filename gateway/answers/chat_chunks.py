"""The chunks of a streamed chat completion: role, content, finish reason, usage."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answers.chunks import Chunks
from gateway.answers.logprobs import chat_logprobs
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest
from gateway.http.sse import event
from gateway.model.tokenize import Tokenizer
from gateway.protocol.chat import ChatChunk, ChatChunkChoice, ChatDelta, ChatRequest
from gateway.protocol.response import ResponseHead, Usage


class ChatChunks(Chunks):
    def __init__(
        self, head: ResponseHead, request: ChatRequest, prepared: PreparedRequest, tokenizer: Tokenizer
    ) -> None:
        super().__init__(head, request, prepared, tokenizer, bool(request.logprobs))
        self._names_prompt = self._has_token_ids
        self._as_ids = bool(request.return_tokens_as_token_ids)

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._event([ChatChunkChoice(index, ChatDelta(content=text))])

    def _rich_chunk(self, choice: Choice, text: str) -> bytes:
        entries = choice.take_logprobs()
        token_ids = choice.take_token_ids()
        if not (text or entries or token_ids or choice.finish_reason is None):
            return b""
        logprobs = chat_logprobs(self._tokenizer, entries, self._as_ids) if self._has_logprobs else None
        shown_ids = token_ids if self._has_token_ids else UNSET
        return self._event([ChatChunkChoice(choice.index, ChatDelta(content=text), logprobs, None, shown_ids)])

    def _opening(self, choice: Choice) -> bytes:
        """The role; the first chunk of all also names the prompt's tokens, if they were asked for."""
        prompt = self._prepared.prompts[0] if self._names_prompt else UNSET
        self._names_prompt = False
        return self._event([ChatChunkChoice(choice.index, ChatDelta(role="assistant", content=""))], prompt)

    def _closing(self, choice: Choice) -> bytes:
        return self._event([ChatChunkChoice(choice.index, ChatDelta(), finish_reason=choice.finish_reason)])

    def _usage_chunk(self, usage: Usage) -> bytes:
        return self._event([], usage=usage)

    def _event(
        self,
        choices: list[ChatChunkChoice],
        prompt_token_ids: list[int] | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> bytes:
        chunk = ChatChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            service_tier=self._head.service_tier,
            usage=(usage or self._usage_so_far()) if self._has_usage else UNSET,
            prompt_token_ids=prompt_token_ids,
        )
        return event(msgspec.json.encode(chunk))
