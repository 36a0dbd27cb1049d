"""`POST /tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.chat import ChatRequest, check_chat
from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import TokenId


class TokenizePrompt(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None  # default: true
    return_token_strs: bool | None = None


class TokenizeChat(ChatRequest, frozen=True, kw_only=True):
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: msgspec.Raw | None = None  # a list of strings


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True):
    prompt: str


class _Which(msgspec.Struct):
    prompt: msgspec.Raw | UnsetType = UNSET
    messages: msgspec.Raw | UnsetType = UNSET


_which = msgspec.json.Decoder(_Which)
_prompt = msgspec.json.Decoder(TokenizePrompt)
_chat = msgspec.json.Decoder(TokenizeChat)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


def decode_tokenize(body: bytes) -> TokenizePrompt | TokenizeChat:
    """Raises InvalidRequestError."""
    which = decode_json(_which, body)
    if (which.prompt is UNSET) == (which.messages is UNSET):
        raise InvalidRequestError("Give either 'prompt' or 'messages'.", param="prompt", code="missing_parameter")
    if which.messages is UNSET:
        return decode_json(_prompt, body)
    request = decode_json(_chat, body)
    check_chat(request)
    return request


def decode_detokenize(body: bytes) -> DetokenizeRequest:
    """Raises InvalidRequestError."""
    return decode_json(_detokenize, body)
