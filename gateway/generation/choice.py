"""One choice of a response while it grows: tokens in, text out, until it has a finish reason."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.model.detokenize import Detokenizer
from gateway.model.stop_strings import StopScanner, StopStrings
from schedcore.api.types import FinishReason, TokenDelta, TokenLogprobs

_NONE = FinishReason.NONE  # looked up once: this runs per token


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """What the choices of a request have in common."""

    stop_strings: StopStrings | None = None
    includes_stop: bool = False  # show the stop string or stop token that ended the text
    min_tokens: int = 0  # stop strings do not count before
    keeps_logprobs: bool = False
    keeps_token_ids: bool = False
    discards_output: bool = False  # only the echoed prompt was asked for


class Choice:
    """`feed` hands out new text; logprobs and token ids pile up until they are taken."""

    __slots__ = (
        "_detokenizer",
        "_logprobs",
        "_options",
        "_scanner",
        "_token_ids",
        "finish_reason",
        "first_token_at",
        "index",
        "last_token_at",
        "num_cached_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "prompt_index",
        "prompt_logprobs",
        "stop_string",
        "stopped_by_gateway",
        "vector",
    )

    def __init__(self, index: int, prompt_index: int, detokenizer: Detokenizer, options: ChoiceOptions) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.num_prompt_tokens: int | None = None  # where the engine made the prompt longer: images
        self.finish_reason: str | None = None  # OpenAI's word; set once
        self.stop_string: str | None = None  # the one that ended it
        self.stopped_by_gateway = False  # the engine does not know yet that this choice has ended
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.vector: bytes | None = None  # of the prompt, if it was asked for
        self._detokenizer = detokenizer
        self._options = options
        self._scanner = StopScanner(options.stop_strings) if options.stop_strings else None
        self._logprobs: list[TokenLogprobs] = []
        self._token_ids: list[int] = []

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def scans_text(self) -> bool:
        """It may end before the engine ends it."""
        return self._scanner is not None

    def decode(self, delta: TokenDelta) -> str:
        """The text that the delta's tokens complete. REQUIRES: not finished, no error in the delta."""
        options = self._options
        token_ids = delta.token_ids
        if not self.num_tokens:
            self.num_cached_tokens = delta.num_cached_tokens
            self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
            self.vector = delta.vector or self.vector
            self.num_prompt_tokens = delta.num_prompt_tokens or self.num_prompt_tokens
        if options.discards_output:
            return self._discard(delta)
        self.num_tokens += len(token_ids)
        if options.keeps_logprobs and delta.logprobs:
            self._logprobs += delta.logprobs
        if options.keeps_token_ids:
            self._token_ids += token_ids
        if delta.finish_reason is _NONE:
            return self._detokenizer.add(token_ids) if self._scanner is None else self._scan(delta)
        return self._finish(delta)

    def take_logprobs(self) -> list[TokenLogprobs]:
        taken, self._logprobs = self._logprobs, []
        return taken

    def take_token_ids(self) -> list[int]:
        taken, self._token_ids = self._token_ids, []
        return taken

    def _discard(self, delta: TokenDelta) -> str:
        if delta.finish_reason is not FinishReason.NONE:
            self.finish_reason = "length"
        return ""

    def _finish(self, delta: TokenDelta) -> str:
        hides_stop_token = delta.stop_token_id is not None and not self._options.includes_stop
        shown = delta.token_ids[:-1] if hides_stop_token else delta.token_ids
        if self._scanner is None:
            text = self._detokenizer.add(shown) if shown else ""
        else:
            text = self._scan(delta, len(shown))
            if self.finish_reason is not None:
                return text
        self.finish_reason = "stop" if delta.finish_reason is FinishReason.STOP else "length"
        return text + self._end_of_text()

    def _end_of_text(self) -> str:
        """What was held back is text after all, unless it completes a stop string."""
        rest = self._detokenizer.flush()
        if self._scanner is None:
            return rest
        safe, stop = self._scanner.scan(rest) if rest else ("", None)
        if stop is not None:
            self.finish_reason, self.stop_string = "stop", stop
            return safe + (stop if self._options.includes_stop else "")
        return safe + self._scanner.flush()

    def _scan(self, delta: TokenDelta, num_shown: int | None = None) -> str:
        """Token by token, so that counts do not depend on how many tokens came together."""
        assert self._scanner is not None
        token_ids = delta.token_ids[:num_shown]
        before = self.num_tokens - len(delta.token_ids)
        texts = []
        for i, token_id in enumerate(token_ids):
            text = self._detokenizer.add((token_id,))
            if before + i < self._options.min_tokens:
                texts.append(text)
                continue
            safe, stop = self._scanner.scan(text)
            texts.append(safe)
            if stop is not None:
                self._stop(stop, texts, num_unused=len(delta.token_ids) - i - 1)
                self.stopped_by_gateway = delta.finish_reason is FinishReason.NONE
                break
        return "".join(texts)

    def _stop(self, stop: str, texts: list[str], num_unused: int) -> None:
        """The tokens after the stop string were generated but belong to nobody."""
        self.finish_reason, self.stop_string = "stop", stop
        if self._options.includes_stop:
            texts.append(stop)
        if num_unused:
            self.num_tokens -= num_unused
            del self._logprobs[-num_unused:]
            del self._token_ids[-num_unused:]
