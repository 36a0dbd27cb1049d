from __future__ import annotations

import pytest

from gateway.config.config import GatewayConfig


def test_servers_are_named_by_addresses() -> None:
    config = GatewayConfig(engine="http://a:8000/v1, https://b.example/,")
    assert config.engine_urls == ("http://a:8000", "https://b.example")
    assert GatewayConfig(engine="vllm").engine_urls == ()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("nonsense", "hocket or vllm, or the address of a server"),
        ("ftp://a", "is no address"),
        ("http://", "is no address"),
        ("http://a:x", "is no address"),
        ("http://me:secret@a", "HOCKET_ENGINE_API_KEY"),
        ("http://a/other", "must end behind the port"),
        ("http://a,http://a/v1", "names a server twice"),
    ],
)
def test_what_is_no_server_is_refused(engine: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig(engine=engine)
