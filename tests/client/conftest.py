from __future__ import annotations

from collections.abc import Iterator

import pytest

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
