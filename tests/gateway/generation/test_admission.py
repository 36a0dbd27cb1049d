"""The queue's bounds, and when to come back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fakes.manual_clock import ManualClock
from gateway.generation.admission import Admission, Refusal, Ticket


def admitted(answer: Ticket | Refusal) -> Ticket:
    assert isinstance(answer, Ticket)
    return answer


def refused(answer: Ticket | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def test_requests_are_bounded() -> None:
    admission = Admission(max_requests=2, max_tokens=100)
    first = admitted(admission.admit(1, 10))
    admitted(admission.admit(1, 10))
    assert "requests" in refused(admission.admit(1, 10)).reason
    admission.leave(first, now=1.0)
    admitted(admission.admit(1, 10))


def test_tokens_are_bounded() -> None:
    admission = Admission(max_requests=10, max_tokens=100)
    admitted(admission.admit(1, 60))
    assert "tokens" in refused(admission.admit(1, 60)).reason
    admitted(admission.admit(1, 40))


def test_an_empty_queue_admits_anything() -> None:
    assert isinstance(Admission(max_requests=1, max_tokens=1).admit(5, 1000), Ticket)


def test_leaving_twice_counts_once() -> None:
    admission = Admission(max_requests=2, max_tokens=100)
    ticket = admitted(admission.admit(1, 10))
    admission.leave(ticket, now=1.0)
    admission.leave(ticket, now=2.0)
    assert (admission.num_requests, admission.num_tokens) == (0, 0)


def test_retry_after_follows_the_drain_rate() -> None:
    clock = ManualClock()
    admission = Admission(max_requests=100, max_tokens=100_000)
    tickets = [admitted(admission.admit(1, 1000)) for _ in range(100)]
    for ticket in tickets[:50]:
        clock.advance(0.1)
        admission.leave(ticket, clock())
        admitted(admission.admit(1, 1000))
    wait = refused(admission.admit(1, 1000)).retry_after_seconds
    assert wait in (5, 6)  # half of 100,000 tokens at 10,000 a second, rounded up


def test_without_knowledge_retry_after_is_a_second() -> None:
    admission = Admission(max_requests=1, max_tokens=100)
    admitted(admission.admit(1, 10))
    assert refused(admission.admit(1, 10)).retry_after_seconds == 1


def test_retry_after_is_bounded() -> None:
    admission = Admission(max_requests=3, max_tokens=10**9)
    first, second = (admitted(admission.admit(1, 1)) for _ in range(2))
    admitted(admission.admit(1, 10**8))
    admission.leave(first, now=0.0)
    admission.leave(second, now=1000.0)
    admitted(admission.admit(1, 1))
    admitted(admission.admit(1, 1))
    assert refused(admission.admit(1, 1)).retry_after_seconds == 60


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(1, 50)), max_size=60))
def test_counts_are_the_sums_over_waiting_tickets(steps: list[tuple[bool, int, int]]) -> None:
    admission = Admission(max_requests=10, max_tokens=200)
    waiting: list[Ticket] = []
    for now, (enters, num_requests, num_tokens) in enumerate(steps):
        if enters:
            answer = admission.admit(num_requests, num_tokens)
            if isinstance(answer, Ticket):
                waiting.append(answer)
            else:
                assert waiting
                assert answer.retry_after_seconds >= 1
        elif waiting:
            admission.leave(waiting.pop(num_tokens % len(waiting)), float(now))
        assert admission.num_requests == sum(ticket.num_requests for ticket in waiting)
        assert admission.num_tokens == sum(ticket.num_tokens for ticket in waiting)


def test_who_fills_the_queue_keeps_no_other_tenant_out() -> None:
    admission = Admission(max_requests=8, max_tokens=800)
    bobs = [admitted(admission.admit(1, 10, "bob")) for _ in range(8)]  # alone he may have all of it
    assert isinstance(admission.admit(1, 10, "bob"), Refusal)
    for _ in range(4):
        assert isinstance(admission.admit(1, 10, "alice"), Ticket)
    assert isinstance(admission.admit(1, 10, "alice"), Refusal)  # that was her half
    admission.leave(bobs.pop(), now=1.0)
    assert isinstance(admission.admit(1, 10, "bob"), Refusal)  # who is over his part waits until there is room


def test_tokens_are_shared_too_and_the_queue_stays_bounded() -> None:
    admission = Admission(max_requests=100, max_tokens=1000)
    admitted(admission.admit(1, 900, "bob"))
    assert "tokens" in refused(admission.admit(1, 600, "alice")).reason
    admitted(admission.admit(1, 500, "alice"))
    for i in range(1000):
        admission.admit(1, 10, f"tenant {i}")
    assert admission.num_tokens <= 2000
    assert admission.num_requests <= 200


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("ab")), max_size=12), st.integers(1, 5))
def test_the_early_answer_is_that_of_admission(before: list[tuple[int, str]], num_requests: int) -> None:
    admission = Admission(max_requests=6, max_tokens=10**6)
    for number, tenant in before:
        admission.admit(number, 1, tenant)
    early = admission.refusal(num_requests, "c")
    answer = admission.admit(num_requests, 1, "c")
    assert early == (answer if isinstance(answer, Refusal) else None)


def test_what_waits_at_other_gateways_takes_places_of_the_queue() -> None:
    admission = Admission(max_requests=8, max_tokens=800)
    admission.note_others({"bob": (8, 80)})
    assert "8 requests" in refused(admission.admit(1, 10, "bob")).reason  # though nothing waits here
    for _ in range(4):
        admitted(admission.admit(1, 10, "alice"))
    assert isinstance(admission.admit(1, 10, "alice"), Refusal)  # that was her half of all of it
    admission.note_others({})
    admitted(admission.admit(4, 10, "bob"))
    assert (admission.num_requests, admission.num_tokens) == (8, 50)  # what waits here


def test_a_tenant_has_one_share_at_all_gateways() -> None:
    admission = Admission(max_requests=8, max_tokens=800)
    admission.note_others({"bob": (8, 80), "alice": (3, 30)})
    admitted(admission.admit(1, 10, "alice"))
    assert isinstance(admission.admit(1, 10, "alice"), Refusal)
    admission.note_others({"bob": (8, 760), "alice": (1, 390)})
    assert "tokens" in refused(admission.admit(1, 10, "alice")).reason


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(1, 4), st.integers(1, 90)), max_size=60)
)
def test_gateways_that_hear_of_each_other_admit_as_one(steps: list[tuple[int, str, int, int]]) -> None:
    """Told before each request, they say what a single gateway would say."""
    single = Admission(max_requests=10, max_tokens=300)
    several = [Admission(max_requests=10, max_tokens=300) for _ in range(3)]
    waiting: list[Counter[str]] = [Counter() for _ in several]
    tokens: list[Counter[str]] = [Counter() for _ in several]
    for which, tenant, num_requests, num_tokens in steps:
        others = [i for i in range(3) if i != which]
        known = {name: (sum(waiting[i][name] for i in others), sum(tokens[i][name] for i in others)) for name in "abc"}
        several[which].note_others({name: counts for name, counts in known.items() if counts[0]})
        answer = several[which].admit(num_requests, num_tokens, tenant)
        assert isinstance(answer, Ticket) == isinstance(single.admit(num_requests, num_tokens, tenant), Ticket)
        if isinstance(answer, Ticket):
            waiting[which][tenant] += num_requests
            tokens[which][tenant] += num_tokens
    assert sum(a.num_requests for a in several) == single.num_requests <= 20
