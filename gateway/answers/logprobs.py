"""The engine's log-probabilities in OpenAI's two shapes.

Each token is encoded by itself: an answer may hold a quarter of a million, and one call of the encoder for all of
them would stop every other thread for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.model.tokenize import Tokenizer
from gateway.protocol.chat import ChatLogprob, ChatLogprobs, TopLogprob
from gateway.protocol.completions import CompletionLogprobs
from gateway.protocol.response import PromptLogprob
from schedcore.api.types import TokenLogprobs

LOWEST = -9999.0  # JSON has no infinity

_encoder = msgspec.json.Encoder()


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _encoded(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def shown_token(tokenizer: Tokenizer, token_id: int, as_id: bool) -> str:
    """Its text or, where texts may be alike, vLLM's `token_id:65`."""
    return f"token_id:{token_id}" if as_id else _text(tokenizer.piece(token_id))


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], as_ids: bool = False) -> ChatLogprobs:
    return ChatLogprobs([_chat_entry(tokenizer, entry, as_ids) for entry in entries])


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs, as_ids: bool) -> msgspec.Raw:
    def top(token_id: int, logprob: float) -> TopLogprob:
        piece = tokenizer.piece(token_id)
        return TopLogprob(shown_token(tokenizer, token_id, as_ids), _finite(logprob), list(piece))

    own = list(tokenizer.piece(entry.token_id))
    alternatives = [top(*alternative) for alternative in entry.top]
    shown = shown_token(tokenizer, entry.token_id, as_ids)
    return _encoded(ChatLogprob(shown, _finite(entry.logprob), own, alternatives))


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs | None] | None, num_top: int
) -> list[msgspec.Raw | None] | None:
    """vLLM's shape: of each token an object by token id, the likeliest and the token itself; null for the first."""
    return None if entries is None else [_ranked(tokenizer, entry, num_top) for entry in entries]


def _ranked(tokenizer: Tokenizer, entry: TokenLogprobs | None, num_top: int) -> msgspec.Raw | None:
    if entry is None:
        return None
    ranks = {token_id: (logprob, i + 1) for i, (token_id, logprob) in enumerate(entry.top[:num_top])}
    ranks[entry.token_id] = entry.logprob, entry.rank
    return _encoded(
        {
            str(token_id): PromptLogprob(_finite(logprob), rank, _text(tokenizer.piece(token_id)))
            for token_id, (logprob, rank) in ranks.items()
        }
    )


class CompletionLogprobsWriter:
    """Of one choice, in order, so that offsets into its text go on from call to call."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0

    def prompt(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None] | None
    ) -> CompletionLogprobs | None:
        return None if entries is None else self._write(token_ids, entries, self._num_top)

    def output(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        return self._write([entry.token_id for entry in entries], entries)

    def _write(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], num_top: int | None = None
    ) -> CompletionLogprobs:
        """num_top: of the alternatives, which were computed for two askers. None: all."""
        result = CompletionLogprobs([], [], [], [])
        for token_id, entry in zip(token_ids, entries, strict=True):
            token = _text(self._tokenizer.piece(token_id))
            result.tokens.append(shown_token(self._tokenizer, token_id, self._as_ids))
            result.token_logprobs.append(None if entry is None else _finite(entry.logprob))
            result.text_offset.append(self._offset)
            self._offset += len(token)
            result.top_logprobs.append(None if entry is None else self._top(entry, num_top))
        return result

    def _top(self, entry: TokenLogprobs, num_top: int | None) -> msgspec.Raw:
        """The token itself, as vLLM's clients look for it first, and the likeliest, or those that were named."""
        tokenizer, as_ids = self._tokenizer, self._as_ids
        likeliest = entry.top[:num_top]
        top = {shown_token(tokenizer, token_id, as_ids): _finite(logprob) for token_id, logprob in reversed(likeliest)}
        own = shown_token(tokenizer, entry.token_id, as_ids)
        top.setdefault(own, _finite(entry.logprob))
        return _encoded({own: top.pop(own), **dict(sorted(top.items(), key=lambda item: -item[1]))})


def joined(first: CompletionLogprobs | None, second: CompletionLogprobs) -> CompletionLogprobs:
    """The echoed prompt's and the output's."""
    if first is None:
        return second
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )
