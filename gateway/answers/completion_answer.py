"""The answer to a completion request: prompts as they are, each perhaps repeated before its choices."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answers.answer import Answer
from gateway.answers.completion_chunks import CompletionChunks
from gateway.answers.logprobs import CompletionLogprobsWriter, joined, prompt_logprobs
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest, PromptSpec
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Asker
from gateway.protocol.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
    Prompt,
)
from gateway.protocol.generation import asked_grammar

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionAnswer(Answer[CompletionRequest]):
    id_prefix = "cmpl"
    prompt_param = "prompt"

    def __init__(self, model: ServedModel, request: CompletionRequest, name: str, prepared: PreparedRequest) -> None:
        super().__init__(model, request, name, prepared)
        echoed = request.prompts() if request.max_prompt_tokens is None else prepared.prompts
        self._echoes = [_text(model, prompt) for prompt in echoed] if request.echo else None

    def response(self, texts: Sequence[str]) -> CompletionResponse:
        completion, prepared = self._request, self.prepared

        def as_choice(choice: Choice) -> CompletionChoice:
            echo = self._echoes[choice.prompt_index] if self._echoes else ""
            return CompletionChoice(
                index=choice.index,
                text=echo + texts[choice.index],
                finish_reason=choice.finish_reason,
                logprobs=self._logprobs(choice),
                token_ids=choice.take_token_ids() if completion.return_token_ids else UNSET,
                prompt_token_ids=prepared.prompts[choice.prompt_index] if completion.return_token_ids else UNSET,
                prompt_logprobs=self._prompt_logprobs(choice),
            )

        return CompletionResponse(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[as_choice(choice) for choice in prepared.choices],
            usage=prepared.usage(),
            service_tier=self.head.service_tier,
        )

    def chunks(self) -> CompletionChunks:
        return CompletionChunks(self.head, self._request, self.prepared, self._model.tokenizer, self._echoes)

    @classmethod
    async def _prompt_spec(cls, model: ServedModel, request: CompletionRequest, asker: Asker) -> PromptSpec:
        max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        grammar = asked_grammar(request)
        echoes_only = bool(request.echo) and max_tokens == 0  # the engine has to compute one token to see the prompt
        return PromptSpec(
            prompt_param=cls.prompt_param,
            prompts=await _token_ids(model, request, asker),
            max_tokens=1 if echoes_only else max_tokens,
            num_logprobs=request.num_logprobs,
            num_prompt_logprobs=_num_prompt_logprobs(request),
            discards_output=echoes_only,
            grammar=grammar if grammar is None or model.json_has_space else grammar.without_space(),
        )

    def _prompt_logprobs(self, choice: Choice) -> list[msgspec.Raw | None] | UnsetType | None:
        number = self._request.num_prompt_logprobs
        return UNSET if number is None else prompt_logprobs(self._model.tokenizer, choice.prompt_logprobs, number)

    def _logprobs(self, choice: Choice) -> CompletionLogprobs | None:
        completion = self._request
        if completion.logprobs is None:
            return None
        as_ids = bool(completion.return_tokens_as_token_ids)
        writer = CompletionLogprobsWriter(self._model.tokenizer, completion.logprobs, as_ids)
        prompt = self.prepared.prompts[choice.prompt_index]
        of_prompt = writer.prompt(prompt, choice.prompt_logprobs) if completion.echo else None
        return joined(of_prompt, writer.output(choice.take_logprobs()))


def _num_prompt_logprobs(request: CompletionRequest) -> int | None:
    """The most that is asked for, by echo with log-probabilities or by vLLM's parameter."""
    asked = [request.num_prompt_logprobs, request.logprobs if request.echo else None]
    return max((number for number in asked if number is not None), default=None)


async def _token_ids(model: ServedModel, completion: CompletionRequest, asker: Asker) -> list[list[int]]:
    prompts = completion.prompts()
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    return await model.tokenizer.encode_all(texts, completion.add_special_tokens is not False, asker)


def _text(model: ServedModel, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt, skip_special_tokens=False)
