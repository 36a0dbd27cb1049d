"""What a tenant's flex requests and other gateways' offline work cost its batches, against plain sums."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.flex_work import FlexWork

TENANTS = st.sampled_from("abc")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ours"), TENANTS, st.integers(1, 4), st.integers(0, 1000)),
        st.tuples(st.just("others"), st.dictionaries(TENANTS, st.integers(1, 1000), max_size=3)),
        st.tuples(st.just("take")),
    ),
    max_size=30,
)


@given(EVENTS)
def test_all_offline_tokens_are_paid_for_once_by_whose_they_are(events: list[tuple[object, ...]]) -> None:
    work, paid, owed = FlexWork(), Counter[str](), Counter[str]()
    for event in events:
        match event:
            case ("ours", str(tenant), int(number), int(cost)):
                work.begin(tenant, number)
                work.end(tenant, number, cost)
                owed[tenant] += cost
            case ("others", dict(costs)):
                work.note_others(costs)
                owed.update(costs)
            case _:
                paid.update(work.take_costs())
    assert paid + work.take_costs() == +owed
    assert work.take_costs() == Counter()


def test_other_gateways_work_costs_and_is_not_open_here() -> None:
    work = FlexWork()
    work.begin("a", 2)
    work.note_others({"a": 30, "b": 5})
    assert work.num_open == Counter(a=2)
    work.note_others({"b": 1})  # since it was last said: it adds up
    work.end("a", 2, 7)
    assert work.take_costs() == Counter(a=37, b=6)
    assert not work.num_open
