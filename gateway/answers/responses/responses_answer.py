"""The answer to `/v1/responses`: a chat's, in the shapes of that route, kept for whoever goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from gateway.answers.answer import Answer
from gateway.answers.chat_answer import chat_prompt
from gateway.answers.logprobs import chat_logprobs
from gateway.answers.responses.growing_response import GrowingResponse
from gateway.answers.responses.responses_events import ResponsesEvents, call_item
from gateway.engine.classify import Profile
from gateway.generation.answer_reader import Reading
from gateway.generation.prepare import PreparedRequest, PromptSpec
from gateway.generation.serving import Serving
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Asker
from gateway.protocol.chat import Message, check_messages
from gateway.protocol.responses import OutputText, ResponseObject, ResponsesRequest


class ResponsesAnswer(Answer[ResponsesRequest]):
    id_prefix = "resp"
    prompt_param = "input"

    def __init__(self, model: ServedModel, request: ResponsesRequest, name: str, prepared: PreparedRequest) -> None:
        super().__init__(model, request, name, prepared)
        self.growing = GrowingResponse(self.head, request, prepared)

    @property
    def tenant(self) -> str:
        return self.prepared.profile.tenant

    @classmethod
    async def prepare(cls, serving: Serving, request: ResponsesRequest, profile: Profile, arrived_at: float) -> Self:
        """Raises NotFoundError, UnavailableError, InvalidRequestError, QueueFullError."""
        if (earlier := request.asked.previous_response_id) is not None:
            stored = serving.responses.get(profile.tenant, earlier, "previous_response_id")
            request = msgspec.structs.replace(request, messages=[*stored.messages, *request.messages])
            check_messages(request)
        answer = await super().prepare(serving, request, profile, arrived_at)
        if request.is_kept and not profile.is_offline:
            answer.growing.store = serving.responses
        return answer

    def response(self, texts: Sequence[str]) -> ResponseObject:
        choice = self.prepared.choices[0]
        entries = choice.take_logprobs() if self._request.logprobs else []
        logprobs = chat_logprobs(self._model.tokenizer, entries, self._as_ids).content if entries else []
        pieces, status = self.prepared.reading.read(texts[0]), self.growing.end_status
        calls = [call_item(call, status) for call in pieces.calls]
        return self.growing.finished(OutputText(pieces.content, logprobs=logprobs), calls, pieces.reasoning)

    def chunks(self) -> ResponsesEvents:
        tokenizer = self._model.tokenizer if self._request.logprobs else None
        return ResponsesEvents(self.growing, tokenizer, self._as_ids, self.prepared.reading.reader())

    @property
    def _as_ids(self) -> bool:
        return bool(self._request.return_tokens_as_token_ids)

    @classmethod
    async def _prompt_spec(cls, model: ServedModel, request: ResponsesRequest, asker: Asker) -> PromptSpec:
        if request.asked.instructions is not None:
            before = Message("system", request.asked.instructions)
            request = msgspec.structs.replace(request, messages=[before, *request.messages])
        prompt = await chat_prompt(model, request, asker)
        reading = Reading.of(model, request, prompt)
        return PromptSpec(
            prompt_param=cls.prompt_param,
            prompts=[prompt],
            max_tokens=request.max_completion_tokens,
            max_tokens_param="max_output_tokens",
            num_logprobs=request.num_logprobs,
            grammar=reading.grammar(request, "text.format"),
            shows_special_tokens=reading.shows_special_tokens,
            reading=reading,
        )
