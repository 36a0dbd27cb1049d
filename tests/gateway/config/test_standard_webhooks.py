"""Signatures agree with the `openai` package; what is forged, stale or sent twice is told apart."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.standard_webhooks import ReplayGuard, SignedMessage, WebhookError, WebhookSecret, sign, verify

NOW = 1_700_000_000.0
TEXT = "whsec_" + base64.b64encode(bytes(range(32))).decode()
SECRET = WebhookSecret.parse(TEXT)
OTHER = WebhookSecret(bytes(32))


def test_what_is_signed_is_verified() -> None:
    headers = sign([SECRET], "evt_1", NOW + 0.7, b"body")
    assert verify([SECRET], headers, b"body", NOW + 20) == SignedMessage("evt_1", NOW)


def test_the_example_of_the_specifications_reference_library() -> None:
    secret = WebhookSecret.parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(body=st.binary(max_size=200), message_id=st.from_regex(r"evt_[a-z0-9]{1,20}", fullmatch=True))
def test_any_body_survives_and_any_change_of_it_does_not(body: bytes, message_id: str) -> None:
    headers = sign([SECRET], message_id, NOW, body)
    assert verify([SECRET], headers, body, NOW).id == message_id
    with pytest.raises(WebhookError, match="No signature matches"):
        verify([SECRET], headers, body + b" ", NOW)


def test_the_openai_package_accepts_our_signature() -> None:
    event = {"id": "evt_1", "object": "event", "created_at": 1, "type": "batch.completed", "data": {"id": "batch_1"}}
    body = json.dumps(event).encode()
    client = openai.OpenAI(api_key="none", webhook_secret=TEXT)
    unwrapped: Any = client.webhooks.unwrap(body, sign([OTHER, SECRET], "evt_1", time.time(), body))
    assert (unwrapped.type, unwrapped.data.id) == ("batch.completed", "batch_1")
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, sign([OTHER], "evt_1", time.time(), body))


def test_header_names_are_found_in_any_case() -> None:
    headers = {name.title(): value for name, value in sign([SECRET], "evt_1", NOW, b"").items()}
    assert verify([SECRET], headers, b"", NOW).id == "evt_1"


def test_while_secrets_change_either_side_may_be_ahead() -> None:
    assert verify([OTHER], sign([SECRET, OTHER], "evt_1", NOW, b"x"), b"x", NOW)
    assert verify([OTHER, SECRET], sign([SECRET], "evt_1", NOW, b"x"), b"x", NOW)


@pytest.mark.parametrize(("late", "complaint"), [(301, "too old"), (-301, "too new")])
def test_a_message_outside_the_tolerance_is_refused(late: float, complaint: str) -> None:
    with pytest.raises(WebhookError, match=complaint):
        verify([SECRET], sign([SECRET], "evt_1", NOW, b"x"), b"x", NOW + late)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"webhook-id": ""}, "Missing headers: webhook-id"),
        ({"webhook-id": "evt_2"}, "No signature matches"),
        ({"webhook-id": "\udcff"}, "No signature matches"),
        ({"webhook-timestamp": "1_700_000_000"}, "whole seconds"),
        ({"webhook-timestamp": "1700000001"}, "No signature matches"),
        ({"webhook-timestamp": "9" * 400}, "whole seconds"),
        ({"webhook-timestamp": "٣"}, "whole seconds"),
        ({"webhook-signature": "v1"}, "No signature matches"),
        ({"webhook-signature": "v1,not base64!"}, "No signature matches"),
        ({"webhook-signature": "v1,ä"}, "No signature matches"),
        ({"webhook-signature": "v1a,AAAA v2,AAAA"}, "No signature matches"),
    ],
)
def test_headers_that_prove_nothing_are_refused(change: dict[str, str], complaint: str) -> None:
    with pytest.raises(WebhookError, match=complaint):
        verify([SECRET], sign([SECRET], "evt_1", NOW, b"x") | change, b"x", NOW)


@pytest.mark.parametrize(
    "text", ["", "secret", "whsec_", "whsec_!!", "whsec_" + base64.b64encode(bytes(23)).decode(), TEXT[6:]]
)
def test_a_secret_that_is_none_says_how_to_make_one(text: str) -> None:
    with pytest.raises(ValueError, match="openssl rand"):
        WebhookSecret.parse(text)


def test_a_secret_is_not_printed() -> None:
    assert "key" not in repr(SECRET)


def test_a_message_is_handled_once_however_often_it_is_sent() -> None:
    guard = ReplayGuard()
    message = SignedMessage("evt_1", NOW)
    assert guard.claim(message, NOW)
    assert not guard.claim(message, NOW + 1)
    assert not guard.claim(message, NOW + 600)


def test_a_message_whose_handling_failed_may_come_again() -> None:
    guard = ReplayGuard()
    message = SignedMessage("evt_1", NOW)
    assert guard.claim(message, NOW)
    guard.release(message)
    assert guard.claim(message, NOW + 1)


def test_ids_are_forgotten_when_their_time_is_over_or_there_are_too_many() -> None:
    guard = ReplayGuard(max_ids=3)
    for number in range(5):
        assert guard.claim(SignedMessage(f"evt_{number}", NOW), NOW)
    assert len(guard) == 3
    assert guard.claim(SignedMessage("evt_9", NOW + 601), NOW + 601)
    assert len(guard) == 1
