"""Signed webhooks that come in, and the URLs to which ours go out."""

from __future__ import annotations

from urllib.parse import urlsplit

from fuzz.cursor import Cursor
from gateway.advisories.typing_webhook import TypingWebhook
from gateway.config.config import GatewayConfig
from gateway.config.standard_webhooks import ID, SIGNATURE, TIMESTAMP, WebhookSecret, sign
from gateway.config.webhook_targets import METADATA_KEY, WebhookTargets
from gateway.protocol.advisories import decode_typing_webhook
from gateway.protocol.errors import ApiError, AuthenticationError, InvalidRequestError

NOW = 1_700_000_000.0
_SECRET = "whsec_" + "A" * 43 + "="


def check(data: bytes) -> None:
    cursor = Cursor(data)
    match cursor.below(4):
        case 0:
            _check_forged(cursor)
        case 1:
            _check_genuine(cursor.rest())
        case 2:
            _check_target(cursor.rest().decode(errors="surrogateescape"))
        case _:
            _check_configuration(cursor)


def _webhook() -> TypingWebhook:
    return TypingWebhook(GatewayConfig(typing_webhook_secrets=(_SECRET,)))


def _check_forged(cursor: Cursor) -> None:
    """Nobody without the secret gets in, whatever the headers say."""
    headers = {name: cursor.chunk().decode(errors="surrogateescape") for name in (ID, TIMESTAMP, SIGNATURE)}
    try:
        _webhook().verify(headers, cursor.rest(), NOW)
    except AuthenticationError as error:
        assert error.body()
        return
    raise AssertionError("a message without a signature was believed")


def _check_genuine(body: bytes) -> None:
    webhook = _webhook()
    genuine = webhook.verify(sign([WebhookSecret.parse(_SECRET)], "evt", NOW, body), body, NOW)
    assert webhook.claim(genuine, NOW)
    assert not webhook.claim(genuine, NOW)
    try:
        decode_typing_webhook(body)
    except ApiError as error:
        assert error.status < 500
        assert error.body()


def _check_target(url: str) -> None:
    targets = WebhookTargets.parse([], [_SECRET], [], allow_private=False)
    try:
        targets.check("", {METADATA_KEY: url})
    except InvalidRequestError as error:
        assert error.body()
        return
    (target,) = targets.of("", {METADATA_KEY: url})
    parts = urlsplit(target.url)
    assert parts.scheme in ("http", "https")
    assert parts.hostname not in (None, "", "localhost")
    assert not target.is_trusted


def _check_configuration(cursor: Cursor) -> None:
    url, secret = (cursor.chunk().decode(errors="replace") for _ in range(2))
    try:
        WebhookTargets.parse([url], [secret], ["a", "b"], allow_private=True)
    except ValueError as error:
        assert str(error)
