"""`POST /tokenize` and `/detokenize`."""

from __future__ import annotations

from aiohttp import web

from gateway.chat_answer import chat_prompt
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.tokens import (
    DetokenizeResponse,
    TokenizePrompt,
    TokenizeResponse,
    decode_detokenize,
    decode_tokenize,
)
from gateway.routes.common import json_response, read_body
from gateway.services import SERVICES


async def tokenize(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    wanted = decode_tokenize(await read_body(request))
    services.model_name(wanted.model)
    info = services.ready_engine()
    if isinstance(wanted, TokenizePrompt):
        tokens = await services.tokenizer.encode(wanted.prompt, wanted.add_special_tokens is not False)
    else:
        tokens = await chat_prompt(services, wanted)
    strings = [services.tokenizer.token_string(i) for i in tokens] if wanted.return_token_strs else None
    return json_response(TokenizeResponse(len(tokens), info.max_model_len, tokens, strings))


async def detokenize(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    wanted = decode_detokenize(await read_body(request))
    services.model_name(wanted.model)
    vocab_size = services.ready_engine().vocab_size
    for i, token_id in enumerate(wanted.tokens):
        if token_id >= vocab_size:
            raise InvalidRequestError(f"The vocabulary has only {vocab_size} tokens.", param=f"tokens[{i}]")
    return json_response(DetokenizeResponse(services.tokenizer.decode(wanted.tokens, skip_special_tokens=False)))


ROUTES = [web.post("/tokenize", tokenize), web.post("/detokenize", detokenize)]
