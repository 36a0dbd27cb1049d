"""`POST /tokenize` and `/detokenize`."""

from __future__ import annotations

import msgspec
from aiohttp import web

from gateway.answers.chat_answer import chat_prompt
from gateway.generation.truncation import MAX_TOKENS, truncated
from gateway.http.request_record import RequestRecord
from gateway.model.tokenize import Asker, Tokenizer
from gateway.model.work_pool import Work, at_once, in_one_step
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.tokens import (
    DetokenizeResponse,
    TokenizePrompt,
    TokenizeResponse,
    decode_detokenize,
    decode_tokenize,
)
from gateway.routes.common import decoded, read_body
from gateway.services import SERVICES, Services

_MAX_INLINE_TOKENS = 1024


async def tokenize(request: web.Request) -> web.Response:
    services, tenant = request.app[SERVICES], RequestRecord.of(request).tenant
    wanted = await decoded(request, decode_tokenize, await read_body(request))
    services.model.name(wanted.model)
    info = services.serving.ready_engine()
    most = max(MAX_TOKENS, info.max_model_len)
    if isinstance(wanted, TokenizePrompt):
        asker = Asker(tenant, most, "prompt")
        tokens = await services.model.tokenizer.encode(wanted.prompt, wanted.add_special_tokens is not False, asker)
    else:
        prompt = await chat_prompt(services.model, wanted, Asker(tenant, most, "messages"))
        tokens = truncated(wanted, [prompt], None, info.max_model_len)[0]
    work = _tokenized(services.model.tokenizer, tokens, info.max_model_len, bool(wanted.return_token_strs))
    body = await _made(services, work, len(tokens), tenant)
    return web.Response(body=body, content_type="application/json")


async def detokenize(request: web.Request) -> web.Response:
    services, tenant = request.app[SERVICES], RequestRecord.of(request).tenant
    wanted = await decoded(request, decode_detokenize, await read_body(request))
    services.model.name(wanted.model)
    info = services.serving.ready_engine()
    most = max(MAX_TOKENS, info.max_model_len)
    if len(wanted.tokens) > most:
        raise InvalidRequestError(f"At most {most} tokens become a text at a time.", param="tokens")
    work = in_one_step(_detokenized, services.model.tokenizer, wanted.tokens, info.vocab_size)
    body = await _made(services, work, len(wanted.tokens), tenant)
    return web.Response(body=body, content_type="application/json")


async def _made(services: Services, work: Work[bytes], num_tokens: int, tenant: str) -> bytes:
    if num_tokens <= _MAX_INLINE_TOKENS:
        return at_once(work)
    return await services.model.tokenizer.pool.run(work, num_tokens, tenant)


def _tokenized(tokenizer: Tokenizer, tokens: list[int], max_model_len: int, has_strings: bool) -> Work[bytes]:
    """In steps, because whoever encodes JSON lets nobody else run."""
    strings: list[bytes] = []
    for start in range(0, len(tokens) if has_strings else 0, _MAX_INLINE_TOKENS):
        some = [tokenizer.token_string(i) for i in tokens[start : start + _MAX_INLINE_TOKENS]]
        strings.append(msgspec.json.encode(some)[1:-1])
        yield _MAX_INLINE_TOKENS
    raw = msgspec.Raw(b"[" + b",".join(strings) + b"]") if has_strings else None
    return msgspec.json.encode(TokenizeResponse(len(tokens), max_model_len, tokens, raw))


def _detokenized(tokenizer: Tokenizer, tokens: list[int], vocab_size: int) -> bytes:
    if tokens and max(tokens) >= vocab_size:
        i = next(i for i, token_id in enumerate(tokens) if token_id >= vocab_size)
        raise InvalidRequestError(f"The vocabulary has only {vocab_size} tokens.", param=f"tokens[{i}]")
    return msgspec.json.encode(DetokenizeResponse(tokenizer.decode_long(tokens)))


ROUTES = [web.post("/tokenize", tokenize), web.post("/detokenize", detokenize)]
