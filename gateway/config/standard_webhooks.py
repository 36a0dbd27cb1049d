"""Signed webhooks as Standard Webhooks describes them (standardwebhooks.com), the scheme of OpenAI's webhooks too.

    webhook-id: evt_1                     the sender keeps it when it sends again: who saw it before may ignore it
    webhook-timestamp: 1700000000         seconds since the epoch, of this attempt
    webhook-signature: v1,BASE64 v1,...   HMAC-SHA256 over "id.timestamp.body", one for each secret in use

Our own, and not the `standardwebhooks` package: its clock cannot be given, and a malformed header escapes from it as
ValueError. The tests compare with the `openai` package.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_SECONDS = 300.0  # between a message's time and ours, either way
_PREFIX = "whsec_"
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64  # the specification's
_MAX_SIGNATURES = 16  # in one header; each costs an HMAC comparison


class WebhookError(Exception):
    """The message is not proven to come from who holds the secret, or is too old. The text may be shown to it."""


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """A key that both sides know."""

    key: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> WebhookSecret:
        """`whsec_` and 24 to 64 bytes in base64. Raises ValueError that says how to make one."""
        text = text.strip()
        try:
            key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not text.startswith(_PREFIX) or not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
            raise ValueError(
                f"a webhook secret is '{_PREFIX}' and {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} random bytes in base64; "
                f'make one with: echo "{_PREFIX}$(openssl rand -base64 32)"'
            )
        return cls(key)

    def digest(self, message_id: str, timestamp: str, body: bytes) -> bytes:
        head = f"{message_id}.{timestamp}.".encode(errors="surrogateescape")  # what HTTP servers make of other bytes
        return hmac.digest(self.key, head + body, hashlib.sha256)


def sign(secrets: Sequence[WebhookSecret], message_id: str, now: float, body: bytes) -> dict[str, str]:
    """The headers that prove `body`. Several secrets while receivers change from one to the next.

    REQUIRES: the id has no dot, and secrets are not empty.
    """
    assert secrets
    assert "." not in message_id
    timestamp = str(int(now))
    digests = [base64.b64encode(secret.digest(message_id, timestamp, body)).decode() for secret in secrets]
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: " ".join(f"v1,{digest}" for digest in digests)}


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """What the headers of a genuine message say."""

    id: str
    timestamp: float


def verify(
    secrets: Sequence[WebhookSecret],
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> SignedMessage:
    """`body` as it was received, byte for byte; `headers` with names in any case. `now` in seconds since the epoch.

    Does not know what it saw before: ask `ReplayGuard`. Raises WebhookError.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        raise WebhookError(f"Missing headers: {', '.join(missing)}.")
    message_id, stamp = given[ID], given[TIMESTAMP]
    # Digits only: int() would also take "1_0" and " 10", for which the sender's text is not what is signed
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 15):
        raise WebhookError(f"{TIMESTAMP} must be whole seconds since the epoch.")
    signatures = _signatures(given[SIGNATURE])
    expected = [secret.digest(message_id, stamp, body) for secret in secrets]
    if not any(hmac.compare_digest(digest, signature) for digest in expected for signature in signatures):
        raise WebhookError("No signature matches: is it the right secret, and the body as it was sent?")
    if abs(now - int(stamp)) > tolerance_seconds:
        age = "old" if now > int(stamp) else "new"
        raise WebhookError(f"The message is too {age}: {TIMESTAMP} is {abs(now - int(stamp)):.0f} seconds off.")
    return SignedMessage(message_id, float(stamp))


def _signatures(header: str) -> list[bytes]:
    """Those of version 1; what cannot be one is left out."""
    found = []
    for entry in header.split()[:_MAX_SIGNATURES]:
        version, _, text = entry.partition(",")
        if version == "v1":
            try:
                found.append(base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError):
                continue
    return found


class ReplayGuard:
    """Remembers ids of genuine messages for as long as their timestamps are accepted.

    More than `max_ids` within that time: the oldest are forgotten. Only who holds the secret can bring that about.
    """

    def __init__(self, tolerance_seconds: float = TOLERANCE_SECONDS, max_ids: int = 100_000) -> None:
        self._tolerance_seconds = tolerance_seconds
        self._max_ids = max_ids
        self._expiry: OrderedDict[str, float] = OrderedDict()  # in order of arrival

    def __len__(self) -> int:
        return len(self._expiry)

    def claim(self, message: SignedMessage, now: float) -> bool:
        """True if the id is new: then it is the caller's to handle. False: it was seen, answer 2xx and do nothing."""
        self._forget_expired(now)
        if message.id in self._expiry:
            return False
        self._expiry[message.id] = now + 2 * self._tolerance_seconds  # a timestamp may lie as far ahead of us
        while len(self._expiry) > self._max_ids:
            self._expiry.popitem(last=False)
        return True

    def release(self, message: SignedMessage) -> None:
        """Handling it failed: the sender's next attempt counts as new."""
        self._expiry.pop(message.id, None)

    def _forget_expired(self, now: float) -> None:
        while self._expiry and next(iter(self._expiry.values())) < now:
            self._expiry.popitem(last=False)
