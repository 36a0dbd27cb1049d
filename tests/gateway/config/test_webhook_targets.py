"""Who is told that a batch has ended, and which URLs a batch may name."""

from __future__ import annotations

import ipaddress

import pytest

from gateway.config.config import GatewayConfig
from gateway.config.tenants import tenant_of
from gateway.config.webhook_targets import Target, WebhookTargets, is_public
from gateway.protocol.errors import InvalidRequestError

SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
OTHER = "whsec_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA="
URL = "https://example.com/hook"


def targets(
    *urls: str, secrets: tuple[str, ...] = (SECRET,), keys: tuple[str, ...] = (), private: bool = False
) -> WebhookTargets:
    return WebhookTargets.parse(urls, secrets, keys, allow_private=private)


def test_the_operators_url_and_the_batchs_own_are_told() -> None:
    assert targets(URL).of("", None) == [Target(URL, True)]
    assert targets(URL).of("", {"webhook_url": "http://me/x"}) == [Target(URL, True), Target("http://me/x", False)]
    assert targets(secrets=()).of("", {"webhook_url": "http://me/x"}) == []


def test_a_url_may_be_for_one_key_alone() -> None:
    keys = ("alice", "bo:b")
    both = targets(URL, "bo:b:http://b/", secrets=(f"alice:{SECRET}", f"bo:b:{OTHER}"), keys=keys)
    assert [target.url for target in both.of(tenant_of("alice"), None)] == [URL]
    assert [target.url for target in both.of(tenant_of("bo:b"), None)] == [URL, "http://b/"]
    assert both.secrets[tenant_of("alice")] != both.secrets[tenant_of("bo:b")]


@pytest.mark.parametrize(
    ("urls", "secrets", "keys", "complaint"),
    [
        (("ftp://x/",), (SECRET,), (), "starts with http"),
        (("nobody:http://x/",), (SECRET,), ("alice",), "not configured"),
        ((URL,), (), (), "needs --webhook-secret-file"),
        (("http://user:password@x/",), (SECRET,), (), "must not contain a password"),
        (("http:///path",), (SECRET,), (), "expected http"),
        (("http://x:99999/",), (SECRET,), (), "[Pp]ort"),
        ((URL,), ("secret",), (), "openssl rand"),
        ((URL,), (SECRET,), ("alice", "bob"), "must say whose it is"),
    ],
)
def test_what_cannot_be_configured(
    urls: tuple[str, ...], secrets: tuple[str, ...], keys: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        GatewayConfig(webhook_urls=urls, webhook_secrets=secrets, api_keys=keys)


@pytest.mark.parametrize(
    "url",
    [
        "x",
        "ftp://example.com/",
        "http://a b/",
        "http://user@example.com/",
        "http://localhost/",
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://10.0.0.8/",
        "http://169.254.169.254/latest/meta-data",
        "http://0.0.0.0/",
        "http://224.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[2002:a00:1::]/",
        "http://[64:ff9b::a00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b:1::7f00:1]/",
        "http://[64:ff9b:1:0:ff:ff00::]/",
        "http://[::ffff:0:127.0.0.1]/",
        "http://[::ffff:0:10.0.0.1]/",
        "http://192.88.99.1/",
        "http://[::ffff:192.88.99.1]/",
        "http://[fe80::1%25eth0]/",
        "http://x:y/",
    ],
)
def test_a_batch_may_not_name_this(url: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        targets().check("", {"webhook_url": url})
    assert raised.value.param == "metadata.webhook_url"


def test_what_a_batch_may_name() -> None:
    targets().check("", {"webhook_url": URL})
    targets().check("", {"webhook_url": "http://93.184.216.34:8080/x?y=z"})
    targets(private=True).check("", {"webhook_url": "http://localhost:8080/"})
    targets(secrets=()).check("", {"other": "x"})
    with pytest.raises(InvalidRequestError, match="no secret to sign") as raised:
        targets(secrets=()).check("", {"webhook_url": URL})
    assert raised.value.code == "webhooks_not_configured"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("::ffff:0:8.8.8.8", True),
        ("2001::1", False),
        ("::", False),
    ],
)
def test_public_addresses(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected
