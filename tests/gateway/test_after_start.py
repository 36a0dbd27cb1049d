"""What follows the engine's start, and fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from gateway.app import create_app
from gateway.services import Services


async def test_it_is_said_and_the_server_serves(
    make_services: Callable[..., Services], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no greeting today")

    app = create_app(make_services(FakeEngine()), fail)
    async with TestClient(TestServer(app)) as client:
        await eventually(lambda: "no greeting today" in caplog.text, 10.0)
        async with client.get("/health") as response:
            assert response.status == 200
