"""`/v1/advisories` and `/v1/sessions` over a fake engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.byte_tokenizer import tokens_of
from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.fake_sessions import BYTES_PER_TOKEN
from fakes.manual_clock import ManualClock
from gateway.services import SERVICES
from schedcore.api.types import AdvisoryEvent

ALICE, BOB = {"Authorization": "Bearer alice"}, {"Authorization": "Bearer bob"}
HI = [{"role": "user", "content": "Hi"}]
HI_TOKENS = 5  # <|user|> H i <|end|> <|assistant|>


def clock_of(client: Any) -> ManualClock:
    """The gateway's time stands still from now on."""
    services, clock = client.app[SERVICES], ManualClock()
    services.serving.clock = services.serving.advisor._clock = clock
    return clock


async def chat(client: Any, session_id: str | None = "s", headers: dict[str, str] | None = None, **fields: Any) -> None:
    body = {"messages": HI, "session_id": session_id, **fields}
    response = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status == 200, await response.text()


async def advise(client: Any, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, dict[str, Any]]:
    response = await client.post("/v1/advisories", json={"session_id": "s", **fields}, headers=headers)
    return response.status, await response.json()


async def metric(client: Any, line: str) -> float:
    text = await (await client.get("/metrics")).text()
    return sum(float(found.rsplit(" ", 1)[1]) for found in text.splitlines() if found.startswith(line))


async def test_an_advisory_says_where_the_cache_is_and_what_is_done(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await chat(client)
    status, body = await advise(client, eta_ms=2000, lease_ms=5000)
    assert status == 200
    assert (body["id"], body["object"], body["num_tokens"]) == ("s", "session", HI_TOKENS)
    assert body["tiers"]["device"] == {"tokens": HI_TOKENS, "bytes": HI_TOKENS * BYTES_PER_TOKEN}
    assert body["tiers"]["host"] == body["tiers"]["disk"] == {"tokens": 0, "bytes": 0}
    assert (body["action"], body["outcome"]) == ("pin", "accepted")
    assert 4000 < body["lease_ms"] <= 5000
    assert body["lease_expires_at"] > 1.7e9
    advisory = engine.advisories[-1]
    assert (advisory.session_id, advisory.event, advisory.lease_ms) == ("s", AdvisoryEvent.TYPING, 5000)


@pytest.mark.parametrize("name", ["session_id", "prompt_cache_key", "header"])
async def test_sessions_are_named_in_three_ways(serve: Any, name: str) -> None:
    client = await serve(FakeEngine())
    headers = {"X-Session-Id": "mine"} if name == "header" else None
    field = {} if name == "header" else {name: "mine"}
    await client.post("/v1/chat/completions", json={"messages": HI, **field}, headers=headers)
    response = await client.post("/v1/advisories", json=field, headers=headers)
    assert (await response.json())["outcome"] == "accepted"


async def test_an_advisory_without_a_session_is_an_error(serve: Any) -> None:
    response = await (await serve(FakeEngine())).post("/v1/advisories", json={"event": "typing"})
    assert response.status == 400
    assert (await response.json())["error"]["param"] == "session_id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"event": "dancing"}, "event"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"eta_ms": -1}, "eta_ms"),
        ({"draft": "Hel"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"session_id": ""}, "session_id"),
        ({"prompt": "a", "messages": []}, "prompt"),
        ({"model": "gpt-9"}, "model"),
    ],
)
async def test_what_is_wrong_with_an_advisory_is_named(serve: Any, fields: dict[str, Any], param: str) -> None:
    status, body = await advise(await serve(FakeEngine()), **fields)
    assert status in (400, 404)
    assert body["error"]["param"] == param


async def test_a_prompt_holds_tokens_of_the_vocabulary(serve: Any) -> None:
    client = await serve(FakeEngine())
    await chat(client)
    status, body = await advise(client, prompt=[10**6])
    assert (status, body["error"]["param"]) == (400, "prompt")


async def test_an_unknown_session_and_another_tenants_look_the_same(serve: Any) -> None:
    client = await serve(FakeEngine(), api_keys=("alice", "bob"))
    await chat(client, "secret", ALICE)
    assert (await advise(client, ALICE, session_id="secret"))[1]["outcome"] == "accepted"
    answers = []
    for name in ("secret", "nobody"):
        status, body = await advise(client, BOB, session_id=name)
        answers.append((status, {**body, "id": ""}))
        for method in ("get", "delete"):
            response = await getattr(client, method)(f"/v1/sessions/{name}", headers=BOB)
            text = (await response.text()).replace(name, "")
            answers.append((response.status, text))
    assert answers[:3] == answers[3:]
    assert answers[0][1]["outcome"] == "missing"
    assert (await client.get("/v1/sessions/secret", headers=ALICE)).status == 200


async def test_further_advisories_of_a_moment_are_answered_without_the_engine(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    clock = clock_of(client)
    await chat(client)
    outcomes = [(await advise(client))[1]["outcome"] for _ in range(3)]
    assert outcomes == ["accepted", "deferred", "deferred"]
    assert len(engine.advisories) == 1
    clock.advance(0.25)
    _, body = await advise(client, event="agent_step")
    assert (body["outcome"], len(engine.advisories)) == ("accepted", 2)
    assert await metric(client, 'hocket_advisories_total{event="typing",outcome="deferred"}') == 2


async def test_the_lease_of_a_deferred_answer_has_run_on(serve: Any) -> None:
    client = await serve(FakeEngine())
    clock = clock_of(client)
    await chat(client)
    await advise(client, lease_ms=1000)
    clock.advance(0.2)
    assert (await advise(client))[1]["lease_ms"] == pytest.approx(800)


async def test_a_cancel_is_passed_on_at_once_and_once(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    clock_of(client)
    await chat(client)
    await advise(client)
    assert (await advise(client, event="cancel"))[1]["action"] == "release"
    assert (await advise(client, event="cancel"))[1]["outcome"] == "deferred"
    assert [advisory.event for advisory in engine.advisories] == [AdvisoryEvent.TYPING, AdvisoryEvent.CANCEL]


async def test_long_leases_are_cut_and_it_says_so(serve: Any) -> None:
    client = await serve(FakeEngine(), max_lease_ms=10_000.0)
    clock_of(client)
    await chat(client)
    _, body = await advise(client, lease_ms=1e6)
    assert (body["lease_ms"], body["outcome"]) == (10_000.0, "clipped")


async def test_a_draft_goes_to_the_engine_as_tokens_without_the_end_of_the_turn(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await chat(client)
    _, body = await advise(client, messages=[*HI, {"role": "assistant", "content": "Yes?"}], draft="Tell me more abo")
    assert (body["action"], body["outcome"]) == ("draft_prefill", "accepted")
    ids = engine.advisories[-1].draft_token_ids
    whole = [257, *tokens_of("Hi"), 256, 258, *tokens_of("Yes?"), 256, 257, *tokens_of("Tell me more abo")]
    assert ids == whole


@pytest.mark.parametrize(("prompt", "ids"), [([1, 2, 3], [1, 2, 3]), ("Once upon", tokens_of("Once upon"))])
async def test_completions_announce_the_beginning_of_their_prompt(
    serve: Any, without_template: Any, prompt: Any, ids: list[int]
) -> None:
    engine = FakeEngine()
    client = await serve(engine, checkpoint=without_template)
    await client.post("/v1/completions", json={"prompt": "Once", "session_id": "s"})
    assert (await advise(client, prompt=prompt))[1]["outcome"] == "accepted"
    assert engine.advisories[-1].draft_token_ids == ids


async def test_an_unknown_sessions_draft_is_not_even_tokenised(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    monkeypatch.setattr("gateway.routes.advisories.draft_token_ids", None)
    assert (await advise(client, messages=HI, draft="Tell me"))[1]["outcome"] == "missing"
    assert [advisory.draft_token_ids for advisory in engine.advisories] == [[]]


async def test_messages_without_a_chat_template_are_refused(serve: Any, without_template: Any) -> None:
    client = await serve(FakeEngine(), checkpoint=without_template)
    await client.post("/v1/completions", json={"prompt": "Once", "session_id": "s"})
    status, body = await advise(client, messages=HI)
    assert (status, body["error"]["code"]) == (400, "no_chat_template")


async def test_an_engine_that_is_busy_defers(serve: Any) -> None:
    engine = FakeEngine()
    engine.answers_advisories, engine.advise_seconds = False, 0.0
    status, body = await advise(await serve(engine))
    assert (status, body["outcome"], body["lease_ms"]) == (200, "deferred", None)


async def test_a_dead_engine_is_said(serve: Any) -> None:
    engine = FakeEngine()
    engine.answers_advisories = False
    client = await serve(engine)
    asking = asyncio.create_task(advise(client))
    await eventually(lambda: engine.advisories)
    engine.die("The engine was killed by SIGKILL.")
    status, body = await asking
    assert (status, body["error"]["code"]) == (503, "engine_dead")
    assert (await client.get("/v1/sessions/s")).status == 503


async def test_a_session_can_be_looked_at_and_forgotten(serve: Any) -> None:
    client = await serve(FakeEngine())
    await chat(client, "a/b c")
    url = "/v1/sessions/a%2Fb%20c"
    body = await (await client.get(url)).json()
    assert (body["id"], body["num_tokens"], body["action"], body["lease_ms"]) == ("a/b c", HI_TOKENS, "none", None)
    assert await (await client.delete(url)).json() == {"id": "a/b c", "object": "session.deleted", "deleted": True}
    gone = await client.get(url)
    assert (gone.status, (await gone.json())["error"]["code"]) == (404, "session_not_found")


async def test_salted_sessions_are_apart(serve: Any) -> None:
    client = await serve(FakeEngine())
    await chat(client, cache_salt="x")
    assert (await advise(client))[1]["outcome"] == "missing"
    assert (await advise(client, cache_salt="x"))[1]["outcome"] == "accepted"
    assert (await client.get("/v1/sessions/s")).status == 404
    assert (await client.get("/v1/sessions/s?cache_salt=x")).status == 200


async def test_leases_hold_no_more_than_a_tenant_may(serve: Any) -> None:
    client = await serve(FakeEngine(), max_lease_bytes=HI_TOKENS * BYTES_PER_TOKEN)
    clock = clock_of(client)
    for name in ("s", "t"):
        await chat(client, name)
    assert (await advise(client))[0] == 200
    response = await client.post("/v1/advisories", json={"session_id": "t"})
    assert (response.status, response.headers["Retry-After"]) == (429, "1")
    assert (await response.json())["error"]["code"] == "too_many_advisories"
    clock.advance(1)
    assert (await advise(client))[0] == 200  # its own lease is not counted against it
    await advise(client, event="cancel")
    assert (await advise(client, session_id="t"))[0] == 200


async def test_a_request_that_comes_within_the_lease_is_a_hit_or_a_miss(serve: Any) -> None:
    client = await serve(FakeEngine())
    clock = clock_of(client)
    await chat(client)
    await advise(client, lease_ms=10_000)
    clock.advance(4)
    await advise(client, lease_ms=10_000)
    clock.advance(4)
    await chat(client)  # the fake engine serves nothing from its cache
    assert await metric(client, 'hocket_announced_requests_total{result="miss"}') == 1
    assert await metric(client, "hocket_advisory_lead_seconds_sum") == pytest.approx(8)
    await chat(client)
    assert await metric(client, "hocket_advisory_lead_seconds_count") == 1


async def test_a_request_that_never_comes_has_wasted_memory(serve: Any) -> None:
    client = await serve(FakeEngine())
    clock = clock_of(client)
    await chat(client)
    await advise(client, lease_ms=10_000)
    clock.advance(11)
    await chat(client)
    assert await metric(client, 'hocket_announced_requests_total{result="expired"}') == 1
    assert await metric(client, "hocket_advisory_wasted_bytes_total") == HI_TOKENS * BYTES_PER_TOKEN
    assert await metric(client, "hocket_advisory_lead_seconds_count") == 0


async def test_drafts_beyond_a_tenants_tokens_are_refused_and_nobody_elses(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, api_keys=("alice", "bob"), max_draft_tokens_per_second=2.0)
    clock = clock_of(client)
    for headers in (ALICE, BOB):
        await chat(client, headers=headers)
        await advise(client, headers)
    clock.advance(1.0)
    draft = {"messages": HI, "draft": "Tell me more about " + "it " * 20}
    status, body = await advise(client, BOB, **draft)
    assert (status, body["action"]) == (200, "draft_prefill")
    clock.advance(1.0)
    status, body = await advise(client, BOB, **draft)
    assert (status, body["error"]["code"]) == (429, "too_many_advisories")
    assert "drafts" in body["error"]["message"]
    assert (await advise(client, ALICE, **draft))[0] == 200
    clock.advance(1.0)
    assert (await advise(client, BOB))[0] == 200  # without a draft
    clock.advance(120.0)
    assert (await advise(client, BOB, **draft))[0] == 200
    assert await metric(client, 'hocket_advisories_refused_total{reason="draft_tokens"}') == 1


async def test_flex_requests_are_known_while_they_run_and_charged_afterwards(serve: Any) -> None:
    client = await serve(FakeEngine())
    flex = client.app[SERVICES].serving.flex
    await chat(client, service_tier="flex", max_tokens=3)
    await chat(client)
    assert not flex.num_open
    assert flex.take_costs()[""] > HI_TOKENS
    assert not flex.take_costs()
