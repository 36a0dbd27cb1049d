"""Latency of one request from the times at which its chunks arrived."""

from __future__ import annotations

import pytest

from bench.lib.load.request_trace import RequestTrace


def trace(arrival: float, chunk_times: list[float], num_output_tokens: int) -> RequestTrace:
    return RequestTrace(arrival, 4, num_output_tokens, chunk_times, completion=chunk_times[-1] + 0.5)


def test_ttft_and_e2e_count_from_arrival() -> None:
    request = trace(10.0, [12.0, 12.5, 13.5], 3)
    assert request.ttft == 2.0
    assert request.e2e == 4.0


def test_itls_are_the_gaps_between_chunks() -> None:
    assert trace(10.0, [12.0, 12.5, 13.5], 3).itls == [0.5, 1.0]


def test_tpot_does_not_depend_on_how_tokens_were_chunked() -> None:
    one_by_one = trace(0.0, [1.0, 2.0, 3.0, 4.0, 5.0], 5)
    coalesced = trace(0.0, [1.0, 5.0], 5)
    assert one_by_one.tpot == coalesced.tpot == 1.0


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_single_token_has_no_tpot(num_tokens: int) -> None:
    assert trace(0.0, [1.0], num_tokens).tpot is None
