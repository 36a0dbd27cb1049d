"""Targets of API keys: how they are written, and what they stand before."""

from __future__ import annotations

import pytest

from gateway.config.config import GatewayConfig
from gateway.config.tenants import tenant_of
from schedcore.api.types import Targets


def test_a_keys_target_stands_before_the_servers_each_by_itself() -> None:
    config = GatewayConfig(
        api_keys=("alice", "bob", "carol:7"),
        ttft_target_ms=1000.0,
        itl_target_ms=50.0,
        api_key_targets=("alice:ttft=300, tpot=20.5", "carol:7:itl=80", "carol:7:ttft=2000"),
    )
    defaults = config.target_defaults
    assert defaults.of(tenant_of("alice")) == Targets(ttft_ms=300.0, itl_ms=50.0, tpot_ms=20.5)
    assert defaults.of(tenant_of("carol:7")) == Targets(ttft_ms=2000.0, itl_ms=80.0)
    assert defaults.of(tenant_of("bob")) == defaults.of("") == Targets(ttft_ms=1000.0, itl_ms=50.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mallory:ttft=3", "not configured"),
        ("ttft=3", "KEY:ttft=MS"),
        ("alice", "KEY:ttft=MS"),
        ("alice:", "KEY:ttft=MS"),
        ("alice:speed=3", "KEY:ttft=MS"),
        ("alice:ttft=3,", "KEY:ttft=MS"),
        ("alice:ttft", "positive number"),
        ("alice:ttft=0", "positive number"),
        ("alice:itl=-1", "positive number"),
        ("alice:tpot=nan", "positive number"),
        ("alice:tpot=inf", "positive number"),
        ("alice:tpot=fast", "positive number"),
    ],
)
def test_what_makes_no_sense_is_refused_and_quotes_no_key(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        GatewayConfig(api_keys=("alice",), api_key_targets=(text,))
    assert "mallory" not in str(refused.value)
    assert "alice" not in str(refused.value)
