from __future__ import annotations

from gateway.stock.gauges import Gauges, read_gauges
from gateway.stock.offline_window import FIRST, MOST, UNSEEN, OfflineWindow

CALM = Gauges(num_running=3, num_waiting=0, cache_usage=0.2)
METRICS = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="64"} 1.0
other 5
"""


def test_gauges_of_several_engines_are_one() -> None:
    assert read_gauges(METRICS) == Gauges(5, 1, 0.5, 64)


def test_gauges_that_are_not_said_are_none() -> None:
    assert read_gauges("") is None
    assert read_gauges("vllm:num_requests_running 3") is None


def test_the_older_name_of_the_usage_and_numbers_that_are_none() -> None:
    text = "vllm:num_requests_running NaN\nvllm:num_requests_waiting 2\nvllm:gpu_cache_usage_perc 0.5"
    assert read_gauges(text) == Gauges(0, 2, 0.5)


def test_it_grows_while_it_is_used_up_and_nobody_waits() -> None:
    window = OfflineWindow()
    window.observe(CALM, FIRST - 1)
    assert window.size == FIRST
    for _ in range(100):
        window.observe(CALM, window.size)
    assert window.size == MOST


def test_it_halves_where_somebody_waits_or_the_cache_is_full_and_keeps_one() -> None:
    for pressed in (Gauges(3, 1, 0.1), Gauges(3, 0, 0.95)):
        window = OfflineWindow()
        for _ in range(10):
            window.observe(CALM, window.size)
        before = window.size
        window.observe(pressed, before)
        assert window.size == before // 2
        for _ in range(10):
            window.observe(pressed, window.size)
        assert window.size == 1


def test_an_online_request_without_a_token_holds_it_back() -> None:
    window = OfflineWindow()
    assert window.has_room(0, 0)
    assert not window.has_room(0, 1)
    assert not window.has_room(FIRST, 0)


def test_a_server_that_says_nothing_gets_little() -> None:
    window = OfflineWindow()
    for _ in range(10):
        window.observe(None, window.size)
    assert window.size == UNSEEN
