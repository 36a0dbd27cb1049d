"""route() against a plain-Python twin on random tables, and its rules one by one."""

from __future__ import annotations

import io
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from schedcore._core import RequestClass, algorithms
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.routing.route import (
    ROUTINGS,
    Choice,
    NodeLoad,
    NodeState,
    NodeTable,
    NodeTraits,
    RouteOptions,
    RouteReason,
    RouteRequest,
    Routing,
    cost_of,
    prefix_keys,
    route,
    routing_named,
    session_digest,
)
from schedcore.routing.router import Router, RoutingRecordError, replay

COEFFICIENTS = LatencyCoefficients(
    step_base=0.004, prefill_token=6e-5, prefill_pair=1e-9, decode_seq=1e-4, decode_context=2e-8, overlap=0.3
)
LATENCY = core_model("corrected", COEFFICIENTS)
EXACT = {"equal_seconds": 0.0, "equal_ratio": 0.0, "num_least": 16, "num_drawn": 0}
KEY_TOKENS = 512


def table_of(num_nodes: int, **traits: Any) -> NodeTable:
    table = NodeTable(max_sessions=1000, max_prefixes=1000)
    for node in range(num_nodes):
        table.add_node(NodeTraits(LATENCY, **{"bytes_per_token": 131_072, "machine": node, **traits}), incarnation=1)
    return table


def load(table: NodeTable, node: int, queue: float = 0.0, running: float = 0, at: float = 0.0) -> None:
    table.note_load(node, 1, NodeLoad(at, queue, 0, running, 500.0 * running))


def keys_of(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(1, 2**63, count).astype(np.uint64)


def choose(table: NodeTable, request: RouteRequest, routing: str = "cost", now: float = 0.0, **options: Any) -> Choice:
    return route(request, table, RouteOptions(routing_named(routing), **{**EXACT, **options}), now)


def send(table: NodeTable, request: RouteRequest, node: int, now: float = 0.0) -> None:
    """As if it had been routed there."""
    choice = cost_of(request, table, RouteOptions(), now, node)
    table.note_choice(request, choice, now)


# ---- the cost, term by term ----


class CostTwin:
    """The formula at the top of route.h, for one node, in the plainest way."""

    def __init__(self, options: dict[str, float]) -> None:
        self.options = options

    def step(self, decodes: float, context: float, tokens: float = 0, start: float = 0, steps: float = 1) -> float:
        batch = algorithms.BatchFeatures()
        batch.num_decodes, batch.decode_context = decodes, context
        batch.max_context = context / decodes if decodes else 0.0
        if tokens:
            batch.num_chunks, batch.chunk_tokens = 1, tokens / steps
            batch.chunk_pairs = tokens * (tokens + 2 * start) / steps
            batch.chunk_squares = (tokens / steps) ** 2
            batch.chunk_context = start + tokens * (steps - 1) / (2 * steps)
        return LATENCY.predict(batch)

    def prefill(self, node: dict[str, Any], start: float, tokens: float) -> float:
        if tokens <= 0:
            return 0.0
        decodes = node["running"] + node["sent"]
        steps = math.ceil(tokens / max(1.0, 2048 - decodes))
        return steps * self.step(decodes, node["context"], tokens, start, steps)

    def cost(self, node: dict[str, Any], request: dict[str, Any], sources: list[dict[str, Any]]) -> float:
        queue = max(0.0, node["busy_until"] - request["now"])
        tokens = request["tokens"]
        held = min(node["held"], tokens - 1)
        ways = [queue + self.prefill(node, 0, tokens), queue + self.prefill(node, held, tokens - held)]
        for source in sources:
            has = min(source["held"], tokens - 1)
            if source is not node and has > held:
                pull = (has - held) * 131_072 / 1e9
                ways.append(max(queue, pull) + self.prefill(node, has, tokens - has))
        ttft = min(ways)
        weight = (request["class"] is RequestClass.ONLINE) * 2.0 ** min(3, max(-3, -request["priority"]))
        late = max(0.0, request["age"] + ttft - request["target"])
        decoding = 0.05 * request["outputs"] * self.step(node["running"] + node["sent"], node["context"])
        return ttft + weight * late + decoding


@pytest.mark.parametrize("seed", range(40))
def test_on_random_tables_the_choice_is_the_least_cost_of_all_nodes_and_the_cost_is_that_of_the_twin(seed: int) -> None:
    draw = random.Random(seed)
    count, now, keys = draw.randint(1, 16), 10.0, keys_of(seed, 6)
    table, twins = table_of(count), []
    for node in range(count):
        queue, running = draw.choice((0.0, draw.uniform(0, 2))), draw.randint(0, 40)
        depth = draw.choice((0, 0, draw.randint(1, 6)))
        if depth:
            beginning = RouteRequest(99, depth * KEY_TOKENS, keys=keys[:depth], expected_outputs=0)
            send(table, beginning, node, now=1.0)
        load(table, node, queue, running, at=now)
        twins.append({
            "running": running, "sent": 0, "context": 500.0 * running, "busy_until": now + queue,
            "held": depth * KEY_TOKENS,
        })  # fmt: skip
    asked = {
        "tokens": draw.randint(1, 9 * KEY_TOKENS), "now": now, "age": draw.uniform(0, 0.2), "outputs": 100,
        "target": draw.choice((math.inf, 0.3)), "priority": draw.randint(-5, 5),
        "class": draw.choice((RequestClass.ONLINE, RequestClass.OFFLINE)),
    }  # fmt: skip
    request = RouteRequest(
        7, asked["tokens"], keys=keys[: asked["tokens"] // KEY_TOKENS], expected_outputs=100,
        age_seconds=asked["age"], ttft_target_seconds=asked["target"], request_class=asked["class"],
        priority=asked["priority"],
    )  # fmt: skip
    for twin in twins:
        twin["held"] = min(twin["held"], asked["tokens"] // KEY_TOKENS * KEY_TOKENS)
    deepest = max(twin["held"] for twin in twins)
    sources = [twin for twin in twins if twin["held"] == deepest > 0][-4:]
    twin_costs = [CostTwin({}).cost(node, asked, sources) for node in twins]
    found = [cost_of(request, table, RouteOptions(), now, node).cost for node in range(count)]
    if sum(twin["held"] == deepest for twin in twins) <= 4:  # of more holders, four are named as sources
        assert found == pytest.approx(twin_costs)
    choice = choose(table, request, now=now)
    assert choice.cost == pytest.approx(min(found))
    assert choice.cost == pytest.approx(found[choice.node or 0])


@pytest.mark.parametrize("seed", range(5))
def test_the_few_that_are_looked_at_are_as_good_as_all(seed: int) -> None:
    """1,000 nodes of one kind: the regret of the default candidates."""
    draw, keys = random.Random(seed), keys_of(seed, 8)
    table, now = table_of(1000), 5.0
    for node in range(1000):
        if draw.random() < 0.01:
            send(table, RouteRequest(1, 4096, keys=keys, expected_outputs=0), node)
        load(table, node, draw.uniform(0, 3), draw.randint(0, 60), at=now)
    options = RouteOptions(Routing.COST)
    for number in range(20):
        known = keys if number % 2 else None
        request = RouteRequest(number, draw.randint(100, 6000), keys=known, expected_outputs=100)
        best = min(cost_of(request, table, options, now, node).cost for node in range(1000))
        assert route(request, table, options, now).cost <= 1.1 * best + 0.02


def test_a_queue_empties_while_time_passes() -> None:
    table = table_of(2)
    load(table, 0, queue=1.0)
    load(table, 1, queue=1.2, at=0.5)
    request = RouteRequest(1, 100)
    assert choose(table, request, now=0.5).node == 0
    assert choose(table, request, now=0.9).ttft_seconds == pytest.approx(
        0.1 + choose(table_of(1), request).ttft_seconds
    )


def test_a_report_replaces_what_was_sent_before_it_was_made_and_nothing_else() -> None:
    table = table_of(1)
    for at in (1.0, 2.0, 3.0):
        send(table, RouteRequest(1, 2000), 0, now=at)
    alone = cost_of(RouteRequest(1, 2000), table_of(1), RouteOptions(), 0.0, 0).prefill_seconds
    load(table, 0, queue=0.0, at=2.0)
    assert table.num_open(0) == 1
    assert table.busy_until(0) == pytest.approx(3.0 + alone, rel=0.2)
    load(table, 0, queue=9.0, at=1.0)  # older than the last one
    assert table.busy_until(0) < 4.0


def test_a_pull_waits_behind_the_others_of_its_source() -> None:
    table, keys = table_of(3), keys_of(1, 16)
    for node in (1, 2):
        table.note_pull_rate(0, node, 1e10)
    whole = RouteRequest(1, 16 * KEY_TOKENS, keys=keys, expected_outputs=0)
    send(table, whole, 0)
    load(table, 0, queue=30.0, at=1.0)
    first = choose(table, whole, now=1.0)
    assert (first.source, first.pull_seconds) == (0, pytest.approx((16 * KEY_TOKENS - 1) * 131_072 / 1e10))
    table.note_choice(whole, first, 1.0)
    other = cost_of(whole, table, RouteOptions(), 1.0, 3 - (first.node or 0))
    assert other.source != 0 or other.pull_seconds > first.pull_seconds


def test_what_has_moved_to_a_tier_below_costs_its_way_back_and_what_was_dropped_its_prefill() -> None:
    times = {}
    for name, device, kept in (("device", math.inf, math.inf), ("host", 1000, math.inf), ("gone", 1000, 2000)):
        table = table_of(1, device_tokens=device, kept_tokens=kept, restore_bytes_per_second=24e9)
        keys = keys_of(1, 8)
        send(table, RouteRequest(1, 4096, keys=keys), 0)
        send(table, RouteRequest(2, 4000), 0)
        load(table, 0, at=9.0)
        times[name] = choose(table, RouteRequest(3, 4096, keys=keys), now=9.0).ttft_seconds
    assert times["device"] < times["host"] < times["gone"] / 3
    assert times["host"] - times["device"] == pytest.approx(4095 * 131_072 / 24e9)


# ---- who stays, who moves ----


def home_at(node: int, num_tokens: float = 4000) -> tuple[NodeTable, int]:
    table, digest = table_of(2), session_digest("t", "", "s")
    table.note_session(digest, node, 1, num_tokens)
    return table, digest


@pytest.mark.parametrize(
    ("queue", "bytes_per_second", "node"),
    [(0.04, 1e12, 0), (0.2, 1e12, 1), (0.1, 5e9, 0)],
    ids=["saves less than 50 ms", "saves enough", "the pull costs more than it saves"],
)
def test_a_session_moves_only_for_a_large_saving(queue: float, bytes_per_second: float, node: int) -> None:
    table, digest = home_at(0)
    table.note_pull_rate(0, 1, bytes_per_second)
    load(table, 0, queue)
    choice = choose(table, RouteRequest(1, 4100, session=digest, expected_outputs=0))
    assert choice.node == node
    assert choice.source == (0 if node else None)
    assert choice.reason == (RouteReason.CHEAPEST if node else RouteReason.HOME)


def test_a_session_that_saves_much_but_a_small_share_stays() -> None:
    table, digest = home_at(0, num_tokens=1)
    load(table, 0, 2.1)
    load(table, 1, 2.0)
    request = RouteRequest(1, 4100, session=digest)
    assert choose(table, request).node == 0
    assert choose(table, request, stay_ratio=0.0).node == 1


@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.DRAINING, NodeState.GONE])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_nothing_new_goes_to_a_node_that_is_not_up(routing: str, state: NodeState) -> None:
    table, digest = home_at(0)
    table.expect_session(digest, 0, until=100.0)
    table.set_state(0, state)
    request = RouteRequest(1, 4100, session=digest)
    assert choose(table, request, routing).node == 1
    table.set_state(1, state)
    assert choose(table, request, routing).node is None
    assert choose(table, request, routing).reason == RouteReason.NONE


def test_blocks_are_pulled_from_a_draining_node_and_not_from_one_that_is_gone() -> None:
    for state, source in ((NodeState.DRAINING, 0), (NodeState.SUSPECT, None), (NodeState.GONE, None)):
        table, digest = home_at(0)
        table.note_pull_rate(0, 1, 1e11)
        table.set_state(0, state)
        assert choose(table, RouteRequest(1, 4100, session=digest)).source == source


def test_another_incarnation_holds_nothing_of_the_old_one() -> None:
    table, digest = home_at(0)
    keys = keys_of(1, 4)
    send(table, RouteRequest(1, 2048, keys=keys), 0)
    table.restart_node(0, NodeTraits(LATENCY, bytes_per_token=131_072), incarnation=2)
    assert table.session_nodes(digest) == []
    assert table.num_prefixes == 0
    table.note_session(digest, 0, 1, 4000.0)  # late, from the old one
    load(table, 0, queue=50.0)
    assert table.session_nodes(digest) == []
    assert table.busy_until(0) == 0.0
    assert choose(table, RouteRequest(1, 2048, keys=keys), routing="sticky").cached_tokens == 0


def test_an_excluded_node_is_not_chosen_even_if_it_is_the_best_or_the_session_s_home() -> None:
    table, digest = home_at(0)
    load(table, 1, queue=60.0)
    for routing in ROUTINGS:
        assert choose(table, RouteRequest(1, 4100, session=digest, excluded=0), routing).node == 1


# ---- advisories ----


def test_an_advised_request_goes_where_it_was_announced_unless_that_is_worse_by_far() -> None:
    for queue, node, reason in ((0.05, 1, RouteReason.ADVISED), (3.0, 0, RouteReason.HOME)):
        table, digest = home_at(0)
        table.expect_session(digest, 1, until=20.0)
        table.note_session(digest, 1, 1, 4000.0)
        table.note_session(digest, 0, 1, 4000.0)
        load(table, 0, 0.04)
        load(table, 1, queue)
        request = RouteRequest(1, 4100, session=digest)
        choice = choose(table, request, "advised")
        assert (choice.node, choice.reason) == (node, reason)
        assert choose(table, request, "advised", now=25.0).reason == RouteReason.HOME  # it has run out
        table.note_choice(request, choice, 0.0)
        assert table.expected_node(digest) is None


def test_an_advisory_moves_a_session_whose_home_will_be_busy_and_counts_as_expected() -> None:
    table, digest = home_at(0)
    load(table, 0, queue=30.0, running=50)
    notice = RouteRequest(1, 4000, session=digest, lead_seconds=8.0)
    choice = choose(table, notice, "advised")
    assert (choice.node, choice.source) == (1, 0)
    table.note_choice(notice, choice, 0.0)
    assert table.expected_node(digest) == 1
    assert table.num_open(1) == 1
    request = RouteRequest(2, 4100, session=digest)
    arrived = choose(table, request, "advised", now=8.0)
    assert (arrived.node, arrived.reason, arrived.source) == (1, RouteReason.ADVISED, None)
    table.note_choice(request, arrived, 8.0)
    assert table.num_open(1) == 1


def test_a_short_wait_is_no_reason_to_move_when_the_request_is_seconds_away() -> None:
    table, digest = home_at(0)
    load(table, 0, queue=3.0)
    assert choose(table, RouteRequest(1, 4000, session=digest, lead_seconds=8.0), "advised").node == 0
    assert choose(table, RouteRequest(1, 4000, session=digest), "advised").node == 1


# ---- the other routings ----


def test_round_robin_takes_turns_over_those_that_are_up() -> None:
    table = table_of(4)
    table.set_state(2, NodeState.DRAINING)
    seen = []
    for number in range(8):
        request = RouteRequest(number, 100)
        choice = choose(table, request, "round_robin")
        table.note_choice(request, choice, 0.0)
        seen.append(choice.node)
    assert set(seen) == {0, 1, 3}
    assert all(seen.count(node) >= 2 for node in (0, 1, 3))


def test_sticky_stays_whatever_it_costs_and_least_loaded_goes_whatever_it_costs() -> None:
    table, digest = home_at(0)
    load(table, 0, queue=60.0, running=9)
    request = RouteRequest(1, 4100, session=digest)
    assert choose(table, request, "sticky").node == 0
    assert choose(table, request, "least_loaded").node == 1
    load(table, 1, queue=90.0, running=3)
    assert choose(table, RouteRequest(1, 4100), "sticky").node == 1  # without a session: the fewest


def test_prefill_and_decode_are_split_where_roles_are_apart() -> None:
    table = NodeTable()
    table.add_node(NodeTraits(LATENCY, bytes_per_token=131_072, machine=0, decodes=False), 1)
    table.add_node(NodeTraits(LATENCY, bytes_per_token=131_072, machine=1, prefills=False), 1)
    table.note_pull_rate(0, 1, 1e11)
    request = RouteRequest(1, 8000)
    choice = choose(table, request, "prefill_decode")
    assert (choice.node, choice.source, choice.reason) == (1, 0, RouteReason.SPLIT)
    table.note_choice(request, choice, 0.0)
    assert table.busy_until(0) > table.busy_until(1)
    assert choose(table, request, "cost").node == 1  # nothing decodes on the other


def test_many_nodes_that_hold_a_prefix_are_all_known() -> None:
    table, keys = table_of(200), keys_of(3, 2)
    for node in range(0, 200, 2):
        send(table, RouteRequest(node, 1024, keys=keys), node)
    for node in range(200):
        found = cost_of(RouteRequest(1, 1024, keys=keys), table, RouteOptions(), 1e3, node)
        assert found.cached_tokens == (1023 if node % 2 == 0 else found.cached_tokens)
        assert (found.source is None) or node % 2 == 1
    table.set_state(0, NodeState.GONE)
    assert cost_of(RouteRequest(1, 1024, keys=keys), table, RouteOptions(), 1e3, 2).cached_tokens == 1023


# ---- equals ----


def test_nodes_that_are_equal_share_what_comes_one_by_one() -> None:
    """However often a report catches one of them at work, and though one of them looks a little dearer."""
    table, given, draw = table_of(2), Counter[int](), random.Random(2)
    load(table, 0, queue=1e-4)
    for number in range(400):
        if number % 10 == 0:
            load(table, draw.randrange(2), running=draw.randint(0, 1), at=float(number))
        for node in range(2):
            table.note_open(node, 0)  # the last one has ended
        request = RouteRequest(number, 8, expected_outputs=4)
        choice = route(request, table, RouteOptions(Routing.LEAST_LOADED), float(number))
        table.note_choice(request, choice, float(number))
        given[choice.node or 0] += 1
    assert abs(given[0] - given[1]) <= 40


def test_what_is_counted_takes_the_place_of_the_report() -> None:
    table = table_of(2)
    load(table, 0, running=5)
    table.note_open(0, 2)
    assert table.num_open(0) == 2
    send(table, RouteRequest(1, 8), 0)
    assert table.num_open(0) == 3
    assert choose(table, RouteRequest(2, 8), "least_loaded").node == 1
    with pytest.raises(ValueError, match="not negative"):
        table.note_open(0, -1)


# ---- stale tables ----


def chosen_in_a_burst(num_gateways: int, **options: Any) -> Counter[int]:
    """Each gateway routes 100 requests by a table that has the same report, the last one for all of them."""
    found: Counter[int] = Counter()
    for gateway in range(num_gateways):
        table = table_of(50)
        draw = random.Random(1)
        for node in range(50):
            load(table, node, queue=0.0, running=draw.randint(0, 3))
        for number in range(100):
            request = RouteRequest(number, 600, expected_outputs=50)
            choice = route(request, table, RouteOptions(Routing.COST, salt=gateway, **options), 0.0)
            table.note_choice(request, choice, 0.0)
            found[choice.node or 0] += 1
    return found


def test_gateways_with_equally_stale_tables_do_not_herd() -> None:
    spread = chosen_in_a_burst(4)
    assert sum(spread.values()) == 400
    assert max(spread.values()) <= 3 * 400 / 50
    assert len(spread) >= 45


def test_what_a_gateway_sends_counts_before_any_report_comes() -> None:
    spread = chosen_in_a_burst(1)
    assert max(spread.values()) <= 5


@pytest.mark.parametrize("routing", ROUTINGS)
def test_equal_arguments_give_equal_choices_and_a_recorded_trace_replays_to_the_same_ones(routing: str) -> None:
    record = io.BytesIO()
    router = Router(routing, options={"salt": 5}, limits={"max_sessions": 50, "max_prefixes": 40}, record=record)
    draw = random.Random(3)
    for node in range(6):
        router.add_node(1, "corrected", COEFFICIENTS, bytes_per_token=131_072, machine=node // 2)
    now, twice = 0.0, []
    for number in range(300):
        now += draw.expovariate(20)
        digest, keys = session_digest("", "", str(draw.randint(0, 80))), keys_of(draw.randint(0, 30), 6)
        fields = {"number": number, "num_tokens": draw.randint(1, 4000), "keys": keys, "session": digest}
        twice.append(route(RouteRequest(**fields), router.table, router.options, now).node)
        assert router.choose(now, **fields).node == twice[-1]
        if number % 7 == 0:
            router.choose(now, **fields, lead_seconds=5.0)
        if number % 10 == 0:
            load = {"as_of": now - 0.2, "queue_seconds": draw.random(), "num_waiting": 1, "num_running": 4}
            router.note_load(draw.randint(0, 5), 1, **load, running_tokens=3000)
        if number == 100:
            router.set_state(3, NodeState.DRAINING)
        if number == 200:
            router.restart_node(4, 2, "corrected", COEFFICIENTS, bytes_per_token=131_072)
            router.note_pull_rate(0, 1, 3e9)
            router.forget_session(digest, 1)
            router.meet_session(digest)
            router.note_session(digest, 2, 1, 800)
            router.expect_session(digest, 2, now + 5)
    record.seek(0)
    found = replay(record)
    assert (found.num_choices, found.difference) == (343, None)


def test_a_record_under_other_options_shows_the_first_difference_and_garbage_is_refused() -> None:
    record = io.BytesIO()
    router = Router("cost", record=record)
    for node in range(2):
        router.add_node(1, "corrected", COEFFICIENTS)
        queue = 5.0 + node
        router.note_load(node, 1, as_of=0.0, queue_seconds=queue, num_waiting=0, num_running=0, running_tokens=0)
    router.choose(0.0, number=1, num_tokens=100)
    changed = io.BytesIO(record.getvalue().replace(b"\xcb\x40\x14", b"\xcb\x40\x34"))  # 5.0 -> 20.0
    assert replay(io.BytesIO(record.getvalue())).difference is None
    assert replay(changed).difference is not None
    with pytest.raises(RoutingRecordError):
        replay(io.BytesIO(b"\x05\x00\x00\x00hello"))


# ---- keys and names ----


def test_keys_stand_for_beginnings_of_prompts() -> None:
    tokens = np.arange(40, dtype=np.int32)
    other = tokens.copy()
    other[20] = 7
    first, second = prefix_keys(1, tokens, 8), prefix_keys(1, other, 8)
    assert len(first) == 5
    assert list(first == second) == [True, True, False, False, False]
    assert not set(first) & set(prefix_keys(2, tokens, 8))
    assert np.array_equal(prefix_keys(1, tokens[:17], 8), first[:2])


def test_a_session_is_named_by_tenant_salt_and_id_together() -> None:
    names = [("a", "b", "c"), ("ab", "", "c"), ("a", "", "bc"), ("", "ab", "c")]
    assert len({session_digest(*name) for name in names}) == 4
    assert session_digest("a", "b", "") == 0


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(ValueError, match="least_loaded"):
        routing_named("random")
    with pytest.raises(IndexError):
        table_of(1).note_load(1, 1, NodeLoad(0, 0, 0, 0, 0))
    with pytest.raises(IndexError):
        cost_of(RouteRequest(1, 1), table_of(1), RouteOptions(), 0.0, 5)
    with pytest.raises(ValueError, match="token"):
        RouteRequest(1, 0)
    with pytest.raises(TypeError, match="keys"):
        RouteRequest(1, 1, keys=np.zeros(1, np.int32))  # type: ignore[arg-type]


def test_memory_of_sessions_and_prefixes_is_bounded() -> None:
    table = table_of(3)
    for number in range(3000):
        request = RouteRequest(number, 2048, keys=keys_of(number, 4), session=number + 1)
        table.note_choice(request, choose(table, request, "least_loaded"), float(number))
    assert table.num_sessions == 1000
    assert table.num_prefixes == 1000
