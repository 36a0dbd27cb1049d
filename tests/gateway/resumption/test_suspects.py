"""Who is failed for an engine's death: the one that did it, and as seldom as can be anybody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.delta_stream import DeltaStream
from gateway.resumption.open_request import OpenRequest
from gateway.resumption.resume_queue import ResumeQueue
from gateway.resumption.suspects import MAX_DEATHS, judge, verdict
from schedcore.api.types import EngineInfo, EngineRequest, RequestClass

INFO = EngineInfo("m", "float32", "cpu", 100, 4096, 16, 100, 2, 8, 64, "fcfs", 0.0)


def open_request(request_id: int, num_prompt: int = 10, *, age_ms: float = 0.0, **fields: object) -> OpenRequest:
    request = EngineRequest(request_id, [1] * num_prompt, 50, age_ms=age_ms, **fields)  # type: ignore[arg-type]
    stream = DeltaStream([request_id], lambda _: None)
    return OpenRequest(request, stream, stream, now=100.0)


def after_deaths(request_id: int, num_deaths: int, *, is_proven: bool) -> OpenRequest:
    one = open_request(request_id)
    one.num_deaths, one.is_proven = num_deaths, is_proven
    return one


def test_a_first_death_is_held_against_nobody() -> None:
    assert judge([after_deaths(1, 1, is_proven=False)]) == []
    assert judge([after_deaths(i, 1, is_proven=i > 2) for i in range(5)]) == []


def test_the_only_suspect_is_guilty() -> None:
    fallen = [
        after_deaths(1, 2, is_proven=True),
        after_deaths(2, 2, is_proven=False),
        after_deaths(3, 1, is_proven=False),
    ]
    assert judge(fallen) == [fallen[1]]
    assert verdict(fallen[1]) == "This request was running when the engine died twice."


def test_several_suspects_are_innocent_until_they_are_tried_alone() -> None:
    fallen = [after_deaths(i, 2, is_proven=False) for i in range(3)]
    assert judge(fallen) == []
    assert all(one.is_suspect for one in fallen)
    fallen[1].num_deaths = 3
    assert judge([fallen[1]]) == [fallen[1]]
    assert verdict(fallen[1]) == "This request was running when the engine died 3 times."


def test_who_kills_slowly_ends_before_the_engine_is_given_up() -> None:
    assert judge([after_deaths(1, MAX_DEATHS - 1, is_proven=True)]) == []
    slow = after_deaths(1, MAX_DEATHS, is_proven=True)
    assert judge([slow]) == [slow]


def trial(num_innocent: int, guilty: int | None, deaths_by_chance: list[int]) -> tuple[set[int], int]:
    """Whoever ends with an error, and how many engines died: a world in which a request kills as soon as it runs.

    deaths_by_chance: after so many turns an engine dies of something else. Innocent requests never end by themselves.
    """
    everybody = {i: open_request(i) for i in range(num_innocent + (guilty is not None))}
    queue, under_way, failed = ResumeQueue(), dict(everybody), set[int]()
    on_engine, num_deaths = dict(everybody), 0
    for turn in range(200):
        kills = guilty is not None and guilty in on_engine
        if kills or turn in deaths_by_chance:
            num_deaths += 1
            for one in on_engine.values():
                one.num_deaths += 1
            convicted = judge(list(on_engine.values()))
            failed |= {one.request.request_id for one in convicted}
            for one in on_engine.values():
                one.was_proven = one.is_proven
                if one not in convicted:
                    queue.add(one)
            on_engine, under_way = {}, {}
        while (next_one := queue.take(under_way.values(), INFO, 0.0)) is not None:
            next_one.is_proven = False
            on_engine[next_one.request.request_id] = under_way[next_one.request.request_id] = next_one
        if not (guilty is not None and guilty in on_engine):
            for one in on_engine.values():
                one.is_proven, one.is_suspect = True, False
            under_way = {}
    assert len(on_engine) + len(failed) == len(everybody), "somebody waits for ever"
    return failed, num_deaths


@pytest.mark.parametrize("num_innocent", [0, 1, 7, 40])
def test_poison_is_found_among_any_number(num_innocent: int) -> None:
    failed, num_deaths = trial(num_innocent, guilty=num_innocent // 2, deaths_by_chance=[])
    assert failed == {num_innocent // 2}
    assert num_deaths <= 3


@given(st.lists(st.integers(0, 100), max_size=MAX_DEATHS - 1), st.integers(1, 30))
def test_deaths_by_chance_fail_nobody_who_gets_tokens_in_between(deaths: list[int], num: int) -> None:
    """Turns are long enough for a token of whoever is tried: nobody is caught in the act."""
    apart = [5 * death for death in deaths]
    assert trial(num, None, [death for death in apart if death])[0] == set()


# ---- order and window ----


@pytest.fixture
def queue() -> ResumeQueue:
    return ResumeQueue()


def order(queue: ResumeQueue) -> list[int]:
    taken = []
    while (one := queue.take([], INFO, 0.0)) is not None:
        taken.append(one.request.request_id)
    return taken


def test_they_go_on_by_class_then_by_what_they_had_then_by_priority_and_age(queue: ResumeQueue) -> None:
    flex = open_request(1, request_class=RequestClass.OFFLINE)
    waited = open_request(2, age_ms=9000.0)
    streamed = open_request(3)
    old = open_request(4, age_ms=5000.0)
    first = open_request(5, priority=-1)
    suspect = open_request(6, priority=-5)
    for one in (flex, streamed, old, first):
        one.was_proven = True
    suspect.is_suspect = True
    for one in (suspect, flex, waited, streamed, old, first):
        queue.add(one)
    assert order(queue) == [5, 4, 3, 2, 1, 6]


def test_the_window_is_what_fills_two_steps_and_one_at_least(queue: ResumeQueue) -> None:
    for i in range(6):
        queue.add(open_request(i, num_prompt=50))
    under_way: list[OpenRequest] = []
    while (one := queue.take(under_way, INFO, 0.0)) is not None:
        under_way.append(one)
    assert len(under_way) == 2  # of 2 x 64 tokens
    queue.add(open_request(9, num_prompt=4000, priority=-1))
    assert queue.take(under_way, INFO, 0.0) is None
    huge = queue.take([], INFO, 0.0)
    assert huge is not None
    assert huge.request.request_id == 9


def test_the_window_holds_no_more_requests_than_the_engine_runs(queue: ResumeQueue) -> None:
    for i in range(20):
        queue.add(open_request(i, num_prompt=1))
    under_way: list[OpenRequest] = []
    while (one := queue.take(under_way, INFO, 0.0)) is not None:
        under_way.append(one)
    assert len(under_way) == INFO.max_num_seqs


def test_suspects_go_alone_and_who_had_nothing_waits_for_who_had(queue: ResumeQueue) -> None:
    streamed, waited, suspect = (open_request(i) for i in (1, 2, 3))
    streamed.was_proven, suspect.is_suspect = True, True
    for one in (streamed, waited, suspect):
        queue.add(one)
    assert queue.take([], INFO, 0.0) is streamed
    assert queue.take([streamed], INFO, 0.0) is None
    assert queue.take([], INFO, 0.0) is waited
    assert queue.take([waited], INFO, 0.0) is None
    assert queue.take([], INFO, 0.0) is suspect
    queue.add(open_request(4))
    assert queue.take([suspect], INFO, 0.0) is None


def test_an_engine_that_asks_for_time_gets_it(queue: ResumeQueue) -> None:
    one = open_request(1)
    one.not_before = 5.0
    queue.add(one)
    assert queue.take([], INFO, 4.9) is None
    assert queue.take([], INFO, 5.0) is one
