"""`GET /metrics`: our names, vLLM's names, the numbers behind them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine, saying
from fakes.offline_rows import begun_batch
from gateway.config.tenants import tenant_of
from gateway.services import SERVICES

HELLO = [{"role": "user", "content": "Hello"}]


async def scrape(client: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = await client.get("/metrics")
    assert response.status == 200
    families = text_string_to_metric_families(await response.text())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


async def total(client: Any, name: str, **labels: str) -> float:
    """The sum over all series of that name that carry those labels."""
    wanted = set(labels.items())
    found = [value for (n, own), value in (await scrape(client)).items() if n == name and wanted <= own]
    assert found, name
    return sum(found)


async def test_tokens_and_latencies_are_counted_per_class(serve: Any) -> None:
    client = await serve(FakeEngine(saying("Hello")))
    for tier in ("default", "flex", "flex"):
        await client.post("/v1/chat/completions", json={"messages": HELLO, "service_tier": tier})
    assert await total(client, "hocket_output_tokens_total", **{"class": "online"}) == 6
    assert await total(client, "hocket_output_tokens_total", **{"class": "offline"}) == 12
    assert await total(client, "hocket_prompt_tokens_total", **{"class": "online"}) == 8
    assert await total(client, "hocket_ttft_seconds_count", **{"class": "offline"}) == 2
    assert await total(client, "hocket_itl_seconds_count", **{"class": "online"}) == 5
    assert await total(client, "hocket_choices_total", **{"class": "offline", "finish_reason": "stop"}) == 2


async def test_targets_are_counted_by_name_and_outcome(serve: Any) -> None:
    client = await serve(FakeEngine(saying("Hello")), ttft_target_ms=60_000.0)
    asked = ({}, {"itl_target_ms": 60_000}, {"tpot_target_ms": 60_000}, {"ttft_target_ms": 1e-6})
    for fields in (*asked, {"service_tier": "flex"}):
        await client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    name = "hocket_target_choices_total"
    found = {key: value for (n, key), value in (await scrape(client)).items() if n == name}
    attained = {"ttft": 3, "itl": 1, "tpot": 1, "all": 3}
    expected = {frozenset({("target", t), ("outcome", "attained")}): float(n) for t, n in attained.items()}
    missed = {frozenset({("target", t), ("outcome", "missed")}): 1.0 for t in ("ttft", "all")}
    assert found == expected | missed


async def test_no_batch_is_named_where_no_key_is_asked_for(serve: Any, tmp_path: Path) -> None:
    client = await serve(FakeEngine(is_manual=True), data_dir=str(tmp_path / "data"), api_keys=("alice",))
    store = client.server.app[SERVICES].offline
    batch = await begun_batch(store, 3, tenant=tenant_of("alice"))
    metrics = client.server.app[SERVICES].serving.metrics.offline
    await eventually(lambda: metrics.num_open_batches == 1)
    text = await (await client.get("/metrics")).text()
    assert batch.id not in text
    assert "batch_" not in text.replace("batch_validation", "")
    assert await total(client, "hocket_offline_batches", state="open") == 1
    assert await total(client, "hocket_offline_deadline_margin_seconds") > 0


async def test_names_that_vllm_dashboards_and_routers_read(serve: Any) -> None:
    client = await serve(FakeEngine(saying("Hello")))
    await client.post("/v1/chat/completions", json={"messages": HELLO})
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:gpu_cache_usage_perc": 0,
        "vllm:prompt_tokens_total": 8,
        "vllm:generation_tokens_total": 6,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_count": 5,
        "vllm:time_per_output_token_seconds_count": 5,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_success_total": 1,
        "vllm:prefix_cache_queries_total": 8,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:num_preemptions_total": 0,
        "vllm:request_prompt_tokens_sum": 8,
        "vllm:request_generation_tokens_sum": 6,
    }
    assert {name: await total(client, name, model_name="demo") for name in expected} == expected
    assert await total(client, "vllm:request_success_total", finished_reason="stop") == 1


async def test_time_in_the_core_and_in_the_model(serve: Any) -> None:
    client = await serve(FakeEngine())
    assert await total(client, "hocket_core_seconds_total") == 0.03
    assert await total(client, "hocket_execute_seconds_total") == 0.4
    assert await total(client, "hocket_step_seconds_total") == 0.5
    await client.post("/v1/completions", json={"prompt": "ab"})
    assert await total(client, "hocket_steps_total") == 3


async def test_running_requests_hold_cache(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "ab", "n": 4}))
    await eventually(lambda: engine.num_open == 4)
    assert await total(client, "hocket_requests_running", **{"class": "online"}) == 4
    assert await total(client, "hocket_cache_units", state="owned") == 4
    assert await total(client, "hocket_cache_usage_ratio") == 0.004
    assert await total(client, "hocket_queue_tokens", **{"class": "online"}) == 8
    while engine.num_open:
        engine.step()
    assert (await asking).status == 200
    assert await total(client, "hocket_cache_usage_ratio") == 0
    assert await total(client, "hocket_queue_tokens") == 0


async def test_histograms_are_cumulative(serve: Any) -> None:
    client = await serve(FakeEngine())
    for prompt in ("a", "abc", "abcdefgh"):
        await client.post("/v1/completions", json={"prompt": prompt})
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in (await scrape(client)).items()
        if name == "hocket_request_prompt_tokens_bucket" and ("class", "online") in labels
    }
    assert (buckets["1.0"], buckets["2.0"], buckets["4.0"], buckets["8.0"], buckets["+Inf"]) == (1, 1, 2, 3, 3)


async def test_refusals_and_responses_are_counted(serve: Any) -> None:
    client = await serve(FakeEngine())
    await client.post("/v1/completions", json={})
    await client.get("/nothing")
    assert await total(client, "hocket_http_responses_total", route="/v1/completions", status="400") == 1
    assert await total(client, "hocket_http_responses_total", route="unknown", status="404") == 1
    assert await total(client, "hocket_requests_refused_total") == 0


async def test_a_dead_engine_is_visible(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    engine.die("gone")
    assert await total(client, "hocket_engine_up") == 0
