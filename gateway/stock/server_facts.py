"""What a server says of itself when it is asked for the first time, and whether it can be served from.

One request of one token shows whether token ids come back and whether priorities are taken; the texts of a probe show
whether its tokenizer is ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from gateway.stock.completion_events import error_message
from gateway.stock.errors import ServerLostError, UnusableServerError

PROBE_TEXT = "Größe 1234: a tokenizer's probe, 日本."
_SECONDS = aiohttp.ClientTimeout(total=60)  # the first request of a cold server takes its time


@dataclass(frozen=True, slots=True)
class ServerFacts:
    model: str  # as requests name it
    max_model_len: int
    version: str
    has_priority: bool


class Examiner:
    """Asks one server. What cannot be reached raises ServerLostError, what is missing UnusableServerError."""

    def __init__(self, session: aiohttp.ClientSession, url: str, names: tuple[str, ...], probe_ids: list[int]) -> None:
        """names: of the model, the first that the server has is taken. probe_ids: PROBE_TEXT by our tokenizer."""
        self._session, self._url, self._names, self._probe_ids = session, url, names, probe_ids

    async def examine(self) -> ServerFacts:
        model, max_model_len = await self._model()
        await self._check_tokenizer(model)
        return ServerFacts(model, max_model_len, await self._version(), await self._try_tokens(model))

    async def _model(self) -> tuple[str, int]:
        status, said = await self._ask("GET", "/v1/models")
        if status in (401, 403):
            raise UnusableServerError(f"{self._url} wants another key (HOCKET_ENGINE_API_KEY)")
        cards = said.get("data") if status == 200 else None
        bases = [card for card in cards or [] if isinstance(card, dict) and not card.get("parent")]
        if not bases:
            raise ServerLostError(f"{self._url} has no models (/v1/models: status {status})")
        card = next((card for name in self._names for card in bases if card.get("id") == name), bases[0])
        length = card.get("max_model_len")
        if not isinstance(length, int) or length < 2:
            raise UnusableServerError(f"{self._url} does not say its context length (max_model_len in /v1/models)")
        return str(card.get("id")), length

    async def _check_tokenizer(self, model: str) -> None:
        body = {"model": model, "prompt": PROBE_TEXT, "add_special_tokens": False}
        status, said = await self._ask("POST", "/tokenize", body)
        if status == 200 and said.get("tokens") != self._probe_ids:
            raise UnusableServerError(
                f"{self._url} serves {model}, whose tokenizer is not that of the MODEL named here: give the same one"
            )

    async def _version(self) -> str:
        status, said = await self._ask("GET", "/version")
        return str(said.get("version", "")) if status == 200 else ""

    async def _try_tokens(self, model: str) -> bool:
        """Whether it takes priorities."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": self._probe_ids[:1] or [0],
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,
            "priority": 1,
        }
        status, said = await self._ask("POST", "/v1/completions", body)
        has_priority = status != 400 or "riority" not in error_message(said)
        if not has_priority:
            del body["priority"]
            status, said = await self._ask("POST", "/v1/completions", body)
        if status >= 500 or status == 429:
            raise ServerLostError(f"{self._url} answers {status}: {error_message(said)}")
        if status != 200:
            raise UnusableServerError(f"{self._url} refuses a prompt of token ids: {error_message(said)}")
        choices = said.get("choices") or [{}]
        if not isinstance(choices[0], dict) or not choices[0].get("token_ids"):
            raise UnusableServerError(
                f"{self._url} sends no token ids (return_token_ids): vllm serve from 0.11 on and hocket serve do"
            )
        return has_priority

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        try:
            async with self._session.request(method, self._url + path, json=body, timeout=_SECONDS) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise ServerLostError(f"{self._url} cannot be reached: {reason(error)}") from None
        try:
            said = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = raw.decode(errors="replace")[:200]
        return response.status, said if isinstance(said, dict) else {"error": said}


def reason(error: BaseException) -> str:
    """In few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    number = getattr(getattr(error, "os_error", error), "errno", None)
    return os.strerror(number).lower() if number else str(error) or type(error).__name__
