from __future__ import annotations

import pytest

from gateway.cluster.fleet_file import Scaling
from gateway.cluster.scaler import Scaler, desired_nodes, most_desired

SCALING = Scaling(metrics_url="http://gw:8000/metrics", min_nodes=1, max_nodes=8, down_after_seconds=600)


def follow(scaler: Scaler, num_nodes: int, desired: list[tuple[float, int]]) -> list[int]:
    numbers = []
    for now, wanted in desired:
        num_nodes = scaler.next(now, num_nodes, wanted)
        numbers.append(num_nodes)
    return numbers


def test_more_nodes_come_at_once_and_within_the_limits() -> None:
    assert follow(Scaler(SCALING), 2, [(0, 5), (10, 20), (20, 8)]) == [5, 8, 8]


def test_fewer_nodes_are_kept_until_they_have_been_too_many_for_long() -> None:
    assert follow(Scaler(SCALING), 6, [(0, 2), (599, 2), (600, 2)]) == [6, 6, 2]
    assert follow(Scaler(SCALING), 3, [(0, 0), (600, 0)]) == [3, 1]


def test_the_most_that_was_wanted_meanwhile_stays() -> None:
    assert follow(Scaler(SCALING), 6, [(0, 2), (300, 4), (600, 1)]) == [6, 6, 4]


def test_wanting_all_of_them_once_begins_anew() -> None:
    assert follow(Scaler(SCALING), 6, [(0, 2), (300, 6), (600, 2), (899, 2), (1200, 2)]) == [6, 6, 6, 6, 2]


def test_the_gauge_is_found_among_a_gateways_metrics() -> None:
    text = "# HELP hocket_desired_nodes x\n# TYPE hocket_desired_nodes gauge\nhocket_desired_nodes 4\nother 9\n"
    assert desired_nodes(text) == 4
    with pytest.raises(ValueError, match="not among the metrics"):
        desired_nodes("other 9\n")


def test_of_several_gateways_whoever_says_it_counts_and_the_most_if_each_does() -> None:
    said = {"one": "hocket_desired_nodes 3\n", "two": "other 9\n", "three": "hocket_desired_nodes 4\n"}

    def scrape(url: str) -> str:
        if url not in said:
            raise ConnectionRefusedError("nobody is there")
        return said[url]

    assert most_desired(["one", "two", "gone"], scrape) == 3
    assert most_desired(["two", "one", "three"], scrape) == 4
    with pytest.raises(ValueError, match=r"two does not say .*; gone does not say .*nobody is there"):
        most_desired(["two", "gone"], scrape)
