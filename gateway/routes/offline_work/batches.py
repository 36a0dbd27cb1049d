"""`/v1/batches`."""

from __future__ import annotations

import msgspec
from aiohttp import web

from gateway.http.request_record import RequestRecord
from gateway.offline.store.records import BatchRecord, TokenUsage
from gateway.offline.store.store import NewBatch
from gateway.protocol.batches import (
    MAX_BATCHES,
    BatchErrors,
    BatchList,
    BatchObject,
    BatchResults,
    BatchUsage,
    InputTokensDetails,
    OutputTokensDetails,
    RequestCounts,
    decode_create_batch,
    window_seconds,
)
from gateway.protocol.decoding.query import whole_number
from gateway.routes.common import decoded, json_response, read_body
from gateway.routes.offline_work.store import offline_store

_MAX_CURSOR = 10**17
_MAX_RESULTS = 1000


async def create_batch(request: web.Request) -> web.Response:
    store, tenant = offline_store(request), RequestRecord.of(request).tenant
    asked = await decoded(request, decode_create_batch, await read_body(request))
    store.webhooks.check(tenant, asked.metadata)
    new = NewBatch(
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        window_seconds=window_seconds(asked.completion_window),
        metadata=asked.metadata,
        output_expires_after=asked.output_expires_after.seconds if asked.output_expires_after else None,
    )
    return json_response(_object(await store.create_batch(tenant, new)))


async def list_batches(request: web.Request) -> web.Response:
    limit = whole_number(request.query, "limit", default=20, low=1, high=MAX_BATCHES)
    found, has_more = await offline_store(request).list_batches(
        RequestRecord.of(request).tenant, after=request.query.get("after"), limit=limit
    )
    objects = [_object(record) for record in found]
    ids = (objects[0].id, objects[-1].id) if objects else (None, None)
    return json_response(BatchList(objects, has_more, *ids))


async def get_batch(request: web.Request) -> web.Response:
    return json_response(_object(await _record(request)))


async def cancel_batch(request: web.Request) -> web.Response:
    tenant = RequestRecord.of(request).tenant
    return json_response(_object(await offline_store(request).cancel_batch(tenant, request.match_info["batch"])))


async def batch_results(request: web.Request) -> web.Response:
    """What has landed so far; ours, not OpenAI's."""
    after = whole_number(request.query, "after", default=0, low=0, high=_MAX_CURSOR)
    limit = whole_number(request.query, "limit", default=100, low=1, high=_MAX_RESULTS)
    tenant = RequestRecord.of(request).tenant
    batch, landed, has_more = await offline_store(request).landed(tenant, request.match_info["batch"], after, limit)
    page = BatchResults(
        data=[msgspec.Raw(row.line) for row in landed],
        cursor=str(landed[-1].cursor if landed else after),
        has_more=has_more,
        batch=_object(batch),
    )
    return json_response(page)


async def _record(request: web.Request) -> BatchRecord:
    return await offline_store(request).batch(RequestRecord.of(request).tenant, request.match_info["batch"])


def _object(batch: BatchRecord) -> BatchObject:
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=None if batch.errors is None else BatchErrors(msgspec.Raw(batch.errors)),
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=str(batch.status),
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_at,
        in_progress_at=batch.in_progress_at,
        expires_at=batch.expires_at,
        finalizing_at=batch.finalizing_at,
        completed_at=batch.completed_at,
        failed_at=batch.failed_at,
        expired_at=batch.expired_at,
        cancelling_at=batch.cancelling_at,
        cancelled_at=batch.cancelled_at,
        request_counts=RequestCounts(batch.num_rows, batch.num_completed, batch.num_failed),
        usage=_usage(batch.usage),
        metadata=batch.metadata,
    )


def _usage(usage: TokenUsage) -> BatchUsage:
    return BatchUsage(
        usage.input_tokens,
        InputTokensDetails(usage.cached_tokens),
        usage.output_tokens,
        OutputTokensDetails(),
        usage.input_tokens + usage.output_tokens,
    )


ROUTES = [
    web.post("/v1/batches", create_batch),
    web.get("/v1/batches", list_batches),
    web.get("/v1/batches/{batch}", get_batch),
    web.post("/v1/batches/{batch}/cancel", cancel_batch),
    web.get("/v1/batches/{batch}/results", batch_results),
]
