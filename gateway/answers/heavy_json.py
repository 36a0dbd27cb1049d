"""Bodies to requests and answers to bodies; what is large is decoded and encoded beside the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.answers.answer import Answer
from gateway.generation.serving import Serving
from gateway.model.work_pool import Work, in_one_step
from gateway.protocol.decoding.json_weight import MAX_WEIGHT, check_weight

MAX_INLINE_BYTES = 16_384  # a shorter body is decoded in less time than a thread hop is worth
MAX_INLINE_ENTRIES = 4096  # tokens and log-probabilities of an answer
_BYTES_PER_COST = 16  # decoding is so much faster than tokenising

T = TypeVar("T")


async def decode_body(
    serving: Serving, decode: Callable[[bytes], T], body: bytes, tenant: str, *, is_background: bool = False
) -> T:
    """What `decode` makes of the body, if it can be done quickly. Raises InvalidRequestError, QueueFullError."""
    if len(body) <= MAX_INLINE_BYTES:
        return decode(body)
    context = serving.engine.info.max_model_len if serving.engine.is_alive else 0  # files and batches need no engine
    work = _decoding(decode, body, max(MAX_WEIGHT, 4 * context))
    pool = serving.model.tokenizer.pool
    return await pool.run(work, len(body) // _BYTES_PER_COST, tenant, is_background=is_background)


async def encode_answer(serving: Serving, answer: Answer[Any], texts: Sequence[str]) -> bytes:
    """Raises QueueFullError."""
    prepared = answer.prepared
    sampling = prepared.requests[0].sampling
    num_logprobs = max(sampling.num_logprobs or 0, len(sampling.logprob_token_ids))
    size = prepared.num_output_tokens * (1 + num_logprobs) + prepared.num_prompt_tokens
    size += sum(len(choice.vector or b"") // 4 for choice in prepared.choices)
    if size <= MAX_INLINE_ENTRIES:
        return _encoded(answer, texts)
    work, profile = in_one_step(_encoded, answer, texts), prepared.profile
    return await serving.model.tokenizer.pool.run(work, 0, profile.tenant, is_background=profile.is_offline)


def _decoding(decode: Callable[[bytes], T], body: bytes, most: int) -> Work[T]:
    check_weight(body, most)
    yield 1
    return decode(body)


def _encoded(answer: Answer[Any], texts: Sequence[str]) -> bytes:
    return msgspec.json.encode(answer.response(texts))
