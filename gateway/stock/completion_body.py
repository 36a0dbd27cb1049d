"""A request of ours as the body of `POST /v1/completions`, token ids in and out, with vLLM's fields."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from schedcore.api.types import EngineRequest, Grammar, GrammarKind, RequestClass

OFFLINE_PRIORITY = 2**20  # on top of a request's own: larger runs later
_GRAMMARS = {  # how vLLM names them; it reads no LARK
    GrammarKind.JSON_SCHEMA: "json",
    GrammarKind.REGEX: "regex",
    GrammarKind.CHOICE: "choice",
    GrammarKind.EBNF: "grammar",
}


def completion_body(request: EngineRequest, model: str, has_priority: bool) -> bytes:
    """has_priority: the server orders by it; others refuse one. REQUIRES: no log-probabilities of the prompt."""
    ours = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.prompt_token_ids,
        "max_tokens": request.max_tokens,
        "min_tokens": min(request.min_tokens, request.max_tokens),
        "temperature": ours.temperature,
        "top_p": ours.top_p,
        "top_k": max(0, ours.top_k),
        "min_p": ours.min_p,
        "repetition_penalty": ours.repetition_penalty,
        "presence_penalty": ours.presence_penalty,
        "frequency_penalty": ours.frequency_penalty,
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": True,  # the ends of sequence are among the stop tokens
        "stream": True,
        "return_token_ids": True,
    }
    if ours.seed is not None:
        body["seed"] = ours.seed
    if ours.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in ours.logit_bias.items()}
    if ours.num_logprobs is not None:
        body |= {"logprobs": ours.num_logprobs, "return_tokens_as_token_ids": True}
    if ours.allowed_token_ids is not None:
        body["allowed_token_ids"] = ours.allowed_token_ids
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    if request.grammar is not None:
        body["structured_outputs"] = _structured_outputs(request.grammar)
    if has_priority:
        is_offline = request.request_class is RequestClass.OFFLINE
        body["priority"] = request.priority + (OFFLINE_PRIORITY if is_offline else 0)
    return msgspec.json.encode(body)


def _structured_outputs(grammar: Grammar) -> dict[str, Any]:
    name = _GRAMMARS[grammar.kind]
    is_json = grammar.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.CHOICE)
    space: dict[str, Any] = {} if grammar.has_space else {"disable_any_whitespace": True}
    return {name: json.loads(grammar.text) if is_json else grammar.text, **space}
