"""The storm offers what it is told to, and the sink takes it for nothing."""

from __future__ import annotations

import multiprocessing
import socket
import threading

import pytest

from bench.lib.load.storm_load import Storm, sink


@pytest.mark.parametrize("reconnects", [False, True])
def test_what_a_sink_does_not_take_counts_as_offered(reconnects: bool) -> None:
    stop = multiprocessing.get_context("spawn").Event()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        taking = threading.Thread(target=sink, args=(listener, stop))
        taking.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        storm = Storm(url, ["storm"], rate=2000.0, num_connections=8, reconnects=reconnects)
        storm.run(0.5)
        stop.set()
        taking.join()
    assert storm.num_offered >= 900
    assert 0 <= storm.num_answers <= storm.num_offered
    assert reconnects or storm.num_answers > 0


def test_a_storm_against_nobody_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    storm = Storm(url, ["storm"], rate=1000.0, num_connections=4)
    storm.run(0.1)
    assert storm.num_answers == 0
