"""What takes several calls, written once for threads and for asyncio.

A flow is a generator. It yields what it wants done - a call, a read, a nap - and is sent the outcome, or has the
error raised at that point; what it emits goes to whoever iterates. It holds no socket and never waits. `iterate` does
what flows want with blocking calls, `aiterate` with await; both close every body that was opened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from ._calls import Call, Download
from ._connection import AsyncConnection, Connection
from ._exceptions import APIConnectionError, ServerError, transport_error

T = TypeVar("T")
Flow = Generator["Step", Any, T]

# A server that restarts is waited for; one that stays away this long is given up
MAX_OUTAGE_SECONDS = 600.0
_FIRST_NAP_SECONDS = 0.5
_MAX_NAP_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """An answer that is being read."""

    response: httpx.Response
    pieces: Any  # Iterator[bytes] or AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Fetch:
    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Open:
    call: Download


@dataclass(frozen=True, slots=True)
class Read:
    body: Body


@dataclass(frozen=True, slots=True)
class Close:
    body: Body


@dataclass(frozen=True, slots=True)
class Nap:
    seconds: float


@dataclass(frozen=True, slots=True)
class Pull:
    """The next of the caller's items, which may come from an asynchronous iterator."""

    items: Any


@dataclass(frozen=True, slots=True)
class Emit:
    value: Any


Step = Fetch | Open | Read | Close | Nap | Pull | Emit
END = object()  # of the items that are pulled


# ---- words that flows are written in ----


def fetch(call: Call[T]) -> Flow[T]:
    answer: T = yield Fetch(call)
    return answer


def open_body(call: Download) -> Flow[Body]:
    body: Body = yield Open(call)
    return body


def read(body: Body) -> Flow[bytes | None]:
    """The next piece; None at the end."""
    piece: bytes | None = yield Read(body)
    return piece


def emit(value: Any) -> Flow[None]:
    yield Emit(value)


def nap(seconds: float) -> Flow[None]:
    yield Nap(seconds)


def patiently(make: Callable[[], Flow[T]]) -> Flow[T]:
    """Again and again while the server is away or unwell, as while it restarts: work that is stored there goes on."""
    waited, delay = 0.0, _FIRST_NAP_SECONDS
    while True:
        try:
            return (yield from make())
        except (APIConnectionError, ServerError) as error:
            if waited >= MAX_OUTAGE_SECONDS or not _may_pass(error):
                raise
        yield Nap(delay)
        waited += delay
        delay = min(_MAX_NAP_SECONDS, 2 * delay)


def fetch_patiently(call: Call[T]) -> Flow[T]:
    return patiently(lambda: fetch(call))


def _may_pass(error: APIConnectionError | ServerError) -> bool:
    return isinstance(error, APIConnectionError) or error.status_code in (502, 503, 504)


# ---- who does what they want ----


def run(connection: Connection, flow: Flow[T]) -> T:
    """For flows that emit nothing."""
    driver = iterate(connection, flow)
    while True:
        try:
            next(driver)
        except StopIteration as end:
            result: T = end.value
            return result


def iterate(connection: Connection, flow: Flow[T]) -> Generator[Any, None, T]:
    opened: set[Body] = set()
    outcome, error = None, None
    try:
        while True:
            try:
                step = flow.send(outcome) if error is None else flow.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome, error = None, None
            if isinstance(step, Emit):
                yield step.value
                continue
            try:
                outcome = _do(connection, step, opened)
            except BaseException as raised:
                error = raised
    finally:
        flow.close()
        for body in opened:
            body.response.close()


def _do(connection: Connection, step: Step, opened: set[Body]) -> Any:
    match step:
        case Fetch(call):
            return connection.fetch(call)
        case Open(call):
            response = connection.open(call)
            body = Body(response, response.iter_bytes())
            opened.add(body)
            return body
        case Read(body):
            try:
                return next(body.pieces, None)
            except httpx.RequestError as error:
                raise transport_error(error, connection.options.base_url) from error
        case Close(body):
            opened.discard(body)
            body.response.close()
        case Nap(seconds):
            time.sleep(seconds)
        case Pull(items):
            return next(items, END)
    return None


async def arun(connection: AsyncConnection, flow: Flow[T]) -> T:
    """`run`, awaited."""
    result: list[T] = []
    async for _ in aiterate(connection, _kept(flow, result)):
        pass
    return result[0]


def _kept(flow: Flow[T], result: list[T]) -> Flow[None]:
    """An asynchronous generator cannot return a value."""
    result.append((yield from flow))


async def aiterate(connection: AsyncConnection, flow: Flow[Any]) -> AsyncIterator[Any]:
    opened: set[Body] = set()
    outcome, error = None, None
    try:
        while True:
            try:
                step = flow.send(outcome) if error is None else flow.throw(error)
            except StopIteration:
                return
            outcome, error = None, None
            if isinstance(step, Emit):
                yield step.value
                continue
            try:
                outcome = await _ado(connection, step, opened)
            except BaseException as raised:
                error = raised
    finally:
        flow.close()
        for body in opened:
            await body.response.aclose()


async def _ado(connection: AsyncConnection, step: Step, opened: set[Body]) -> Any:
    match step:
        case Fetch(call):
            return await connection.fetch(call)
        case Open(call):
            response = await connection.open(call)
            body = Body(response, response.aiter_bytes())
            opened.add(body)
            return body
        case Read(body):
            try:
                return await anext(body.pieces, None)
            except httpx.RequestError as error:
                raise transport_error(error, connection.options.base_url) from error
        case Close(body):
            opened.discard(body)
            await body.response.aclose()
        case Nap(seconds):
            await asyncio.sleep(seconds)
        case Pull(items):
            return next(items, END) if isinstance(items, Iterator) else await anext(items, END)
    return None
