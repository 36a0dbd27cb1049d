"""The server that throws bodies away."""

from __future__ import annotations

import urllib.request

from bench.lib.load.sink import Sink


def test_bodies_are_taken_and_answered_each() -> None:
    with Sink(bytes_per_second=1e9) as sink:
        for num_bytes in (0, 1, 100_000, 3_000_000):
            with urllib.request.urlopen(sink.base_url, data=b"x" * num_bytes, timeout=20) as response:
                assert (response.status, response.read()) == (200, b'{"id": "nobody"}')
