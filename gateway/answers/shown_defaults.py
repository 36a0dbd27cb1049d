"""What answers show although their requests did not ask for it, because the server was started so (vLLM's flags)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gateway.config.config import GatewayConfig
from gateway.protocol.generation import GenerationRequest, StreamOptions

R = TypeVar("R", bound=GenerationRequest)


def with_shown_defaults(request: R, config: GatewayConfig) -> R:
    """Usage is told to a request that says no, too, and with every chunk, as vLLM does; tokens as ids only where a
    request says nothing."""
    changed: dict[str, Any] = {}
    if config.enable_force_include_usage and request.stream:
        changed["stream_options"] = StreamOptions(include_usage=True, continuous_usage_stats=True)
    if config.return_tokens_as_token_ids and request.return_tokens_as_token_ids is None:
        changed["return_tokens_as_token_ids"] = True
    return msgspec.structs.replace(request, **changed) if changed else request
