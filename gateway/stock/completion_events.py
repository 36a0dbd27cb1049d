"""What streams back from `/v1/completions`: bytes to deltas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.stock.errors import ServerLostError
from schedcore.api.types import EngineRequest, FinishReason, TokenDelta, TokenLogprobs

MAX_EVENT_BYTES = 16 << 20
_TOKEN_ID = "token_id:"
_DONE = b"[DONE]"
_LENGTH = "length"
_FAILURES = ("abort", "error")


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class CompletionEvents:
    """Of one request with one choice. Feed it what arrives; `is_over` after the final delta."""

    def __init__(self, request: EngineRequest, server: str) -> None:
        """server: as errors name it."""
        self.is_over = False
        self._request, self._server = request, server
        self._rest = b""

    def feed(self, data: bytes) -> list[TokenDelta]:
        """Raises ServerLostError for what is no such stream, or one that ends with an error."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ServerLostError(f"{self._server} sent an event of more than {MAX_EVENT_BYTES >> 20} MiB")
        return [delta for line in lines for delta in self._event(line)]

    def _event(self, line: bytes) -> Iterator[TokenDelta]:
        name, _, data = line.partition(b":")
        data = data.strip()
        if name != b"data" or data == _DONE or self.is_over:
            return
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ServerLostError(f"{self._server} sent what is no completion: {error}") from None
        if chunk.error is not None:
            raise ServerLostError(f"{self._server} ended the request: {error_message(chunk.error)}")
        for choice in chunk.choices[:1]:
            yield from self._delta(choice)

    def _delta(self, choice: _Choice) -> Iterator[TokenDelta]:
        tokens = choice.token_ids or []
        if choice.finish_reason in _FAILURES:
            raise ServerLostError(f"{self._server} ended the request ({choice.finish_reason}); its log says more")
        reason = FinishReason.NONE
        if choice.finish_reason is not None:
            self.is_over = True
            reason = FinishReason.LENGTH if choice.finish_reason == _LENGTH else FinishReason.STOP
        logprobs = None if choice.logprobs is None else self._logprobs(tokens, choice.logprobs)
        if tokens or self.is_over:
            stop = self._stop_token(tokens, choice) if reason is FinishReason.STOP else None
            yield TokenDelta(self._request.request_id, tokens, reason, stop, logprobs=logprobs)

    def _stop_token(self, tokens: list[int], choice: _Choice) -> int | None:
        """The one that ended it, the last of them: one of the request's, or of the server's own."""
        is_one = bool(tokens) and (tokens[-1] in self._request.stop_token_ids or choice.stop_reason == tokens[-1])
        return tokens[-1] if is_one else None

    def _logprobs(self, tokens: list[int], said: _Logprobs) -> list[TokenLogprobs]:
        num_top = self._request.sampling.num_logprobs or 0
        tops = said.top_logprobs or [None] * len(tokens)
        if not len(tokens) == len(said.token_logprobs) == len(tops):
            raise ServerLostError(f"{self._server} sent log-probabilities of other tokens than it sent")
        return [
            _entry(token, logprob, top or {}, num_top)
            for token, logprob, top in zip(tokens, said.token_logprobs, tops, strict=True)
        ]


def _entry(token: int, logprob: float | None, top: dict[str, float | None], num_top: int) -> TokenLogprobs:
    """The rank is not said: as far as the likeliest show it."""
    known = [(_id(name), p) for name, p in top.items() if p is not None and name.startswith(_TOKEN_ID)]
    known.sort(key=lambda entry: -entry[1])
    own = -9999.0 if logprob is None else logprob
    rank = 1 + sum(p > own for other, p in known if other != token)
    return TokenLogprobs(token, own, rank, known[:num_top])


def _id(name: str) -> int:
    return int(name.removeprefix(_TOKEN_ID))


def error_message(error: Any) -> str:
    """Of OpenAI's error shape, or whatever else somebody sends."""
    if isinstance(error, dict):
        return str(error.get("message") or error.get("error") or error)
    return str(error)
