from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.batch_server import FakeBatchServer
from fakes.chat_server import FakeChatServer


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of whoever runs the tests."""
    for name in ("HOCKET_BASE_URL", "HOCKET_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[FakeChatServer]:
    with FakeChatServer() as server:
        yield server


@pytest.fixture
def batch_server() -> Iterator[FakeBatchServer]:
    with FakeBatchServer() as server:
        yield server


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays between looks, which are not waited for."""
    delays: list[float] = []

    async def nap(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr("hocket._flows.time.sleep", delays.append)
    monkeypatch.setattr("hocket._flows.asyncio.sleep", nap)
    return delays
