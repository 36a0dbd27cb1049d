"""`--root-path`: the same server with and without its proxy's prefix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes.fake_engine import FakeEngine
from fakes.raw_gateway import get, raw_gateway
from gateway.config.config import GatewayConfig
from gateway.services import Services

MakeServices = Callable[..., Services]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/llm/v1/models", 200),
        ("/v1/models", 200),
        ("/llm", 200),  # the chat page
        ("/llm/", 200),
        ("/llm/files%2Fa?x=%2F", 404),
        ("/llmv1/models", 404),
        ("/llm/llm/v1/models", 404),
        ("/llm//v1/models", 404),
        ("http://localhost/llm/v1/models", 200),
    ],
)
async def test_the_prefix_is_taken_off(make_services: MakeServices, path: str, status: int) -> None:
    async with raw_gateway(make_services(FakeEngine(), root_path="/llm/")) as gateway:
        client = await gateway.connect(get(path))
        found, body = await client.response()
        assert found == status, body


async def test_keys_are_asked_for_below_the_prefix(make_services: MakeServices) -> None:
    async with raw_gateway(make_services(FakeEngine(), root_path="/llm", api_keys=("k",))) as gateway:
        client = await gateway.connect()
        for path, status in (("/llm/v1/models", 401), ("/llm/health", 200), ("/v1/models", 401)):
            client.send(get(path))
            assert (await client.response())[0] == status
        client.send(get("/llm/v1/models", "Authorization: Bearer k"))
        assert (await client.response())[0] == 200


@pytest.mark.parametrize("wrong", ["llm", "/a b", "/a?b", "//a", "/a//b"])
def test_what_is_no_path_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="root_path"):
        GatewayConfig(root_path=wrong)
