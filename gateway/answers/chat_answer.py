"""The answer to a chat request: one prompt, which the chat template makes of the messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answers.answer import Answer
from gateway.answers.chat_chunks import ChatChunks
from gateway.answers.logprobs import chat_logprobs, prompt_logprobs
from gateway.answers.read_chunks import ReadChunks, finish_reason
from gateway.generation.answer_reader import Reading
from gateway.generation.choice import Choice
from gateway.generation.prepare import PromptSpec
from gateway.model.chat_template import MAX_INLINE_RENDERED, MESSAGE_SIZE, num_content_characters
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Asker
from gateway.model.work_pool import in_one_step
from gateway.protocol.chat import AssistantMessage, ChatChoice, ChatRequest, ChatResponse
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.images import decode_images, encoded_images
from gateway.protocol.output.tools import FunctionCall, ToolCall
from gateway.tools.call_reader import Pieces
from schedcore.api.types import ImageLimits

CHARACTERS_PER_COST = 16  # of base64 are decoded in the time of one that is tokenised


class ChatAnswer(Answer[ChatRequest]):
    id_prefix = "chatcmpl"
    prompt_param = "messages"

    def response(self, texts: Sequence[str]) -> ChatResponse:
        chat, prepared, reading = self._request, self.prepared, self.prepared.reading
        as_ids = bool(chat.return_tokens_as_token_ids)

        def as_choice(choice: Choice) -> ChatChoice:
            tokenizer, pieces = self._model.tokenizer, reading.read(texts[choice.index])
            return ChatChoice(
                index=choice.index,
                message=message_of(pieces, has_reasoning=chat.include_reasoning is not False),
                finish_reason=finish_reason(choice.finish_reason, len(pieces.calls)) or "",
                logprobs=chat_logprobs(tokenizer, choice.take_logprobs(), as_ids) if chat.logprobs else None,
                token_ids=choice.take_token_ids() if chat.return_token_ids else UNSET,
            )

        return ChatResponse(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[as_choice(choice) for choice in prepared.choices],
            usage=prepared.usage(),
            service_tier=self.head.service_tier,
            prompt_token_ids=prepared.prompts[0] if chat.return_token_ids else UNSET,
            prompt_logprobs=self._prompt_logprobs(),
        )

    def _prompt_logprobs(self) -> list[msgspec.Raw | None] | UnsetType | None:
        number, entries = self._request.num_prompt_logprobs, self.prepared.choices[0].prompt_logprobs
        return UNSET if number is None else prompt_logprobs(self._model.tokenizer, entries, number)

    def chunks(self) -> ChatChunks:
        reading = self.prepared.reading
        readers = [reader for _ in self.prepared.choices if (reader := reading.reader()) is not None]
        if readers:
            return ReadChunks(self.head, self._request, self.prepared, self._model.tokenizer, readers)
        return ChatChunks(self.head, self._request, self.prepared, self._model.tokenizer)

    @classmethod
    async def _images(
        cls, model: ServedModel, request: ChatRequest, asker: Asker, limits: ImageLimits | None
    ) -> list[bytes]:
        images = encoded_images(request.messages, limits)
        if images and model.template is not None and not model.template.knows_images:
            raise InvalidRequestError(
                "This model's chat template has no place for images.", param="messages", code="template_error"
            )
        size = sum(len(image.text) for image in images) // CHARACTERS_PER_COST
        if size <= MAX_INLINE_RENDERED:
            return decode_images(images)
        work = in_one_step(decode_images, images)
        return await model.tokenizer.pool.run(work, size, asker.tenant, is_background=asker.is_background)

    @classmethod
    async def _prompt_spec(cls, model: ServedModel, request: ChatRequest, asker: Asker) -> PromptSpec:
        is_new_name = request.max_completion_tokens is not None
        prompt = await chat_prompt(model, request, asker)
        reading = Reading.of(model, request, prompt)
        return PromptSpec(
            prompt_param=cls.prompt_param,
            prompts=[prompt],
            max_tokens=request.max_completion_tokens if is_new_name else request.max_tokens,
            max_tokens_param="max_completion_tokens" if is_new_name else "max_tokens",
            num_logprobs=request.num_logprobs,
            num_prompt_logprobs=request.num_prompt_logprobs,
            grammar=reading.grammar(request),
            shows_special_tokens=reading.shows_special_tokens,
            reading=reading,
        )


def message_of(pieces: Pieces, *, has_reasoning: bool) -> AssistantMessage:
    """Of a whole answer. has_reasoning: thinking is told."""
    calls = [ToolCall(call.id or "", FunctionCall(call.name or "", call.arguments)) for call in pieces.calls]
    is_empty = not pieces.content and (calls or pieces.reasoning)
    reasoning = pieces.reasoning if pieces.reasoning and has_reasoning else UNSET
    return AssistantMessage(
        None if is_empty else pieces.content,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
    )


async def chat_prompt(model: ServedModel, chat: ChatRequest, asker: Asker) -> list[int]:
    """Raises InvalidRequestError if the model has no chat template, its template refuses the messages, or they are too
    long for their asker; QueueFullError.
    """
    if model.template is None:
        raise InvalidRequestError(
            "This model has no chat template: use /v1/completions, or serve it with --chat-template.",
            param="messages",
            code="no_chat_template",
        )
    tokenizer, num_characters = model.tokenizer, sum(map(num_content_characters, chat.messages))
    tokenizer.check_size(num_characters, asker)
    size = num_characters + MESSAGE_SIZE * len(chat.messages) + len(msgspec.json.encode(chat.tools or ()))
    if size <= MAX_INLINE_RENDERED:
        text = model.template.render(chat)
    else:
        work = in_one_step(model.template.render, chat)
        text = await tokenizer.pool.run(work, size, asker.tenant, is_background=asker.is_background)
    return await tokenizer.encode(text, bool(chat.add_special_tokens), asker)
