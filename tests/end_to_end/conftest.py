"""One server for the whole session: the demo model, everything real (see fakes/served.py for the exception)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.served import Server, serving

KEY = "test-key"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY, "--api-key", "another-key") as running:
        yield running
