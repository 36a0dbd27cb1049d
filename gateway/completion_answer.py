"""The answer to a completion request, whoever asks: an HTTP client who waits, or a row of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gateway.choice import Choice
from gateway.classify import Profile
from gateway.logprobs import CompletionLogprobsWriter, joined
from gateway.prepare import Prepared, Wish, prepare
from gateway.protocol.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
    Prompt,
)
from gateway.protocol.response import response_head
from gateway.services import Services

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionAnswer:
    """`prepared` goes to the engine; `response` is made of the texts that come back."""

    def __init__(
        self,
        services: Services,
        completion: CompletionRequest,
        model: str,
        prepared: Prepared,
        echoes: list[str] | None,
    ) -> None:
        """echoes: the text of each prompt, if it is to be repeated before its choices."""
        self.prepared = prepared
        self.echoes = echoes
        self.head = response_head("cmpl", model, prepared.profile.service_tier)
        self._services = services
        self._completion = completion

    @classmethod
    async def prepare(
        cls, services: Services, completion: CompletionRequest, profile: Profile, arrived_at: float
    ) -> CompletionAnswer:
        """Raises NotFoundError, UnavailableError, InvalidRequestError."""
        model = services.model_name(completion.model)
        services.ready_engine()
        prompts = completion.prompts()
        wish = _wish(completion, await _token_ids(services, prompts, completion))
        prepared = prepare(services, completion, wish, profile, arrived_at=arrived_at)
        echoes = [_text(services, prompt) for prompt in prompts] if completion.echo else None
        return cls(services, completion, model, prepared, echoes)

    def response(self, texts: Sequence[str]) -> CompletionResponse:
        """texts: of each choice, whole. REQUIRES: every choice has finished. Once only."""
        completion, prepared = self._completion, self.prepared

        def as_choice(choice: Choice) -> CompletionChoice:
            echo = self.echoes[choice.prompt_index] if self.echoes else ""
            return CompletionChoice(
                index=choice.index,
                text=echo + texts[choice.index],
                finish_reason=choice.finish_reason,
                logprobs=self._logprobs(choice),
                token_ids=choice.take_token_ids() if completion.return_token_ids else UNSET,
                prompt_token_ids=prepared.prompts[choice.prompt_index] if completion.return_token_ids else UNSET,
            )

        return CompletionResponse(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[as_choice(choice) for choice in prepared.choices],
            usage=prepared.usage(),
            service_tier=self.head.service_tier,
        )

    def _logprobs(self, choice: Choice) -> CompletionLogprobs | None:
        completion = self._completion
        if completion.logprobs is None:
            return None
        writer = CompletionLogprobsWriter(self._services.tokenizer, completion.logprobs)
        prompt = self.prepared.prompts[choice.prompt_index]
        of_prompt = writer.prompt(prompt, choice.prompt_logprobs) if completion.echo else None
        return joined(of_prompt, writer.output(choice.take_logprobs()))


async def _token_ids(services: Services, prompts: list[Prompt], completion: CompletionRequest) -> list[list[int]]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    return await services.tokenizer.encode_all(texts, completion.add_special_tokens is not False)


def _text(services: Services, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else services.tokenizer.decode(prompt)


def _wish(completion: CompletionRequest, prompts: list[list[int]]) -> Wish:
    max_tokens = DEFAULT_MAX_TOKENS if completion.max_tokens is None else completion.max_tokens
    echoes_only = bool(completion.echo) and max_tokens == 0  # the engine has to compute one token to see the prompt
    return Wish(
        prompt_param="prompt",
        prompts=prompts,
        max_tokens=1 if echoes_only else max_tokens,
        num_logprobs=completion.logprobs,
        num_prompt_logprobs=completion.logprobs if completion.echo else None,
        discards_output=echoes_only,
    )
