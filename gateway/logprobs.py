"""The engine's log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.protocol.chat import ChatLogprob, ChatLogprobs, TopLogprob
from gateway.protocol.completions import CompletionLogprobs
from gateway.tokenize import Tokenizer
from schedcore.types import TokenLogprobs

LOWEST = -9999.0  # JSON has no infinity


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
    return ChatLogprobs([_chat_entry(tokenizer, entry) for entry in entries])


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> ChatLogprob:
    def top(token_id: int, logprob: float) -> TopLogprob:
        piece = tokenizer.piece(token_id)
        return TopLogprob(_text(piece), _finite(logprob), list(piece))

    own = tokenizer.piece(entry.token_id)
    return ChatLogprob(_text(own), _finite(entry.logprob), list(own), [top(*alternative) for alternative in entry.top])


class CompletionLogprobsWriter:
    """Of one choice, in order, so that offsets into its text go on from call to call."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def prompt(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None] | None
    ) -> CompletionLogprobs | None:
        return None if entries is None else self._write(token_ids, entries)

    def output(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        return self._write([entry.token_id for entry in entries], entries)

    def _write(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        result = CompletionLogprobs([], [], [] if self._num_top else None, [])
        for token_id, entry in zip(token_ids, entries, strict=True):
            token = _text(self._tokenizer.piece(token_id))
            result.tokens.append(token)
            result.token_logprobs.append(None if entry is None else _finite(entry.logprob))
            result.text_offset.append(self._offset)
            self._offset += len(token)
            if result.top_logprobs is not None:
                result.top_logprobs.append(None if entry is None else _top(self._tokenizer, entry))
        return result


def joined(first: CompletionLogprobs | None, second: CompletionLogprobs) -> CompletionLogprobs:
    """The echoed prompt's and the output's."""
    if first is None:
        return second
    top = None if first.top_logprobs is None else first.top_logprobs + (second.top_logprobs or [])
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        top,
        first.text_offset + second.text_offset,
    )


def _top(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, float]:
    """The likeliest, and the token itself wherever it ranks."""
    top = {_text(tokenizer.piece(token_id)): _finite(logprob) for token_id, logprob in reversed(entry.top)}
    top.setdefault(_text(tokenizer.piece(entry.token_id)), _finite(entry.logprob))
    return dict(sorted(top.items(), key=lambda item: -item[1]))
