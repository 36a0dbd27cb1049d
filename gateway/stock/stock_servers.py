"""Servers that somebody else runs, as one engine: any that speaks OpenAI's completions with vLLM's token ids.

Nothing inside a step is ours to say there. What is: which server takes a request, what of offline work is there at all,
and that a request whose server went away goes to another, as long as no token of it has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

import aiohttp

from gateway import __version__
from gateway.base.supervision import Supervisor
from gateway.engine.delta_stream import DeltaRouter, DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.stock.errors import RequestRefusedError, ServerBusyError, ServerLostError, UnusableServerError
from gateway.stock.routing import Routing
from gateway.stock.server_facts import Examiner
from gateway.stock.stock_server import StockServer
from gateway.stock.stock_stats import StockCounts, stock_stats
from schedcore.api.types import (
    ADVISORIES,
    BAD_WORDS,
    CACHE_RESET,
    LARK_GRAMMARS,
    LOGPROB_TOKENS,
    POOLING,
    PROMPT_LOGPROBS,
    RESUMPTION,
    Advisory,
    CacheReset,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ErrorCode,
    FinishReason,
    RequestClass,
    SessionState,
    TokenDelta,
)

WITHOUT = (ADVISORIES, BAD_WORDS, CACHE_RESET, LARK_GRAMMARS, LOGPROB_TOKENS, POOLING, PROMPT_LOGPROBS, RESUMPTION)
LOOK_SECONDS = 1.0  # between two looks at a server
MAX_LOST = 2  # servers that may go away under a request; it may be what ends them

_log = logging.getLogger("hocket.gateway")


class StockServers:
    """An EngineClient."""

    def __init__(
        self,
        urls: Sequence[str],
        names: tuple[str, ...],
        vocab_size: int,
        probe_ids: list[int],
        supervisor: Supervisor,
        key: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """names: of the model, ours. probe_ids: server_facts.PROBE_TEXT by our tokenizer. key: that they ask for."""
        self.servers = [StockServer(url) for url in urls]
        self._names, self._vocab_size, self._probe_ids = names, vocab_size, probe_ids
        self._supervisor, self._key, self._clock = supervisor, key, clock
        self._router = DeltaRouter(self._abort)
        self._routing = Routing()
        self._counts = StockCounts()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._offline: list[tuple[int, int, EngineRequest]] = []  # a heap: priority, arrival
        self._dropped: set[int] = set()  # of these, that nobody wants any longer
        self._arrivals = itertools.count()
        self._settled = asyncio.Event()
        self._is_closed = False
        self._death: str | None = None
        self._info: EngineInfo | None = None
        self._started = clock()
        self._resources = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    # ---- what they are ----

    @property
    def info(self) -> EngineInfo:
        self._check_alive()
        assert self._info is not None
        return self._info

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and any(server.is_usable for server in self.servers)

    @property
    def death(self) -> str | None:
        """None while one may come, or come back."""
        return self._death

    @property
    def trouble(self) -> str | None:
        lost = [server.trouble for server in self.servers if server.trouble]
        if not lost:
            return None
        counted = f"{len(lost)} of {len(self.servers)} servers are not used: " if len(self.servers) > 1 else ""
        return f"{counted}{'; '.join(lost)}."

    @property
    def num_restarts(self) -> int:
        return sum(server.num_returns for server in self.servers)

    def stats(self) -> EngineStats:
        return stock_stats(self.servers, self._counts, len(self._offline) - len(self._dropped))

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if not self.is_alive:
            code = "starting" if self._info is None else "restarting"
            raise EngineDeadError(self.trouble or "The servers have not answered yet.", code=code)

    @property
    def num_open(self) -> int:
        """Requests without their final delta, here or there."""
        return len(self._tasks) + len(self._offline)

    # ---- its life ----

    async def start(self) -> None:
        headers = {"User-Agent": f"hocket/{__version__}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(headers=headers, connector=connector, read_bufsize=1 << 18)
        self._session = await self._resources.enter_async_context(session)
        await self._resources.enter_async_context(self._supervisor.running("server_watch", self._watch))
        await self._settled.wait()
        if self._death is not None:
            raise EngineDeadError(self._death)

    async def close(self) -> None:
        self._is_closed = True
        self._die("The server is shutting down.")
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._resources.aclose()

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            for server in self.servers:
                group.create_task(self._keep_looking(server))

    async def _keep_looking(self, server: StockServer) -> None:
        assert self._session is not None
        examiner = Examiner(self._session, server.url, self._names, self._probe_ids)
        while True:
            try:
                await server.look(self._session, examiner)
            except UnusableServerError as error:
                server.lose(str(error))
                self._refuse_start()
            if server.is_usable:
                self._note_usable()
                self._send_offline()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await server.look_soon.wait()
                    await asyncio.sleep(LOOK_SECONDS / 20)  # many may say so at once

    def _refuse_start(self) -> None:
        """At the start only: what is wrong with all of them is likely to stay wrong."""
        if self._info is None and all(server.trouble is not None for server in self.servers):
            self._die(self.trouble or "")

    def _note_usable(self) -> None:
        self._info = self._make_info()
        self._settled.set()

    def _make_info(self) -> EngineInfo:
        facts = [server.facts for server in self.servers if server.facts is not None]
        versions = ", ".join(dict.fromkeys(fact.version for fact in facts if fact.version))
        gauges = [server.gauges for server in self.servers if server.gauges is not None]
        return EngineInfo(
            model=facts[0].model,
            dtype="as served",
            device=f"{', '.join(server.url for server in self.servers)}" + (f" (version {versions})" * bool(versions)),
            vocab_size=self._vocab_size,
            max_model_len=min(fact.max_model_len for fact in facts),
            block_size=16,
            num_units=sum(gauge.num_blocks for gauge in gauges),
            units_per_block=1,
            max_num_seqs=0,  # nobody says
            max_num_batched_tokens=0,
            policy="priority" if all(fact.has_priority for fact in facts) else "fcfs",
            startup_seconds=self._clock() - self._started,
            has_grammars=True,
            missing=list(WITHOUT),
        )

    def _die(self, reason: str) -> None:
        self._death = self._death or reason
        self._settled.set()
        self._offline.clear()
        self._router.fail_all(ErrorCode.ENGINE_DEAD, reason)

    # ---- requests ----

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        self._check_alive()
        stream = self._router.open(request.request_id for request in requests)
        for request in requests:
            self._counts.add(request)
            if request.request_class is RequestClass.OFFLINE:
                heapq.heappush(self._offline, (request.priority, next(self._arrivals), request))
            else:
                self._begin(request, None)
        self._send_offline()
        return stream

    async def advise(self, advisory: Advisory) -> SessionState:
        """Sessions are not known there."""
        self._check_alive()
        return SessionState(request_id=advisory.request_id, is_known=False)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        """Not here: WITHOUT."""
        self._check_alive()
        return CacheReset(request_id, None)

    def _abort(self, request_id: int) -> None:
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()  # which hangs up, and that aborts it there
        else:
            self._dropped.add(request_id)
        self._counts.end(FinishReason.ABORT)

    def _send_offline(self) -> None:
        """As much as the windows take."""
        while self._offline:
            *_, request = self._offline[0]
            if request.request_id in self._dropped:
                self._dropped.discard(request.request_id)
                heapq.heappop(self._offline)
                continue
            open_windows = [server for server in self.servers if server.takes_offline()]
            if not open_windows:
                return
            heapq.heappop(self._offline)
            server = min(open_windows, key=lambda server: server.num_offline / server.window.size)
            self._begin(request, server)

    def _begin(self, request: EngineRequest, server: StockServer | None) -> None:
        """server: None: whichever is best. The request is there from now on, and not when its task has its turn."""
        server = server or self._choose(request, set())
        assert server is not None  # one is alive
        server.expect(request)
        task = asyncio.create_task(self._serve(request, server))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._on_done(request.request_id))

    def _on_done(self, request_id: int) -> None:
        del self._tasks[request_id]
        for server in self.servers:
            server.forget(request_id)
        if not self._is_closed:
            self._send_offline()

    def _choose(self, request: EngineRequest, tried: set[str]) -> StockServer | None:
        usable = {s.url: s for s in self.servers if s.is_usable and s.url not in tried}
        url = self._routing.choose(request, {url: server.load for url, server in usable.items()})
        return None if url is None else usable[url]

    async def _serve(self, request: EngineRequest, server: StockServer) -> None:
        """Until its final delta has been said."""
        try:
            failure = await self._try_servers(request, server)
        except Exception:
            _log.exception("A request to the servers failed")
            failure = EngineError(ErrorCode.INTERNAL, "The gateway failed; its log says more.")
        if failure is not None:
            self._dispatch([TokenDelta(request.request_id, [], FinishReason.ERROR, error=failure)])

    async def _try_servers(self, request: EngineRequest, first: StockServer) -> EngineError | None:
        """None: its final delta has come."""
        server: StockServer | None = first
        tried: set[str] = set()
        num_lost = 0
        failure = EngineError(ErrorCode.ENGINE_DEAD, "There is no server.")
        while server is not None:
            tried.add(server.url)
            num_tokens = 0
            try:
                async with aclosing(server.generate(self._session_of(), request)) as arriving:
                    async for deltas in arriving:
                        num_tokens += sum(len(delta.token_ids) for delta in deltas)
                        self._dispatch(deltas)
                return None
            except RequestRefusedError as error:
                return EngineError(ErrorCode.INVALID, f"{error}")
            except ServerBusyError as error:
                failure = EngineError(ErrorCode.OVERLOADED, f"{error}", error.retry_seconds)
            except ServerLostError as error:
                if num_tokens:
                    return EngineError(ErrorCode.ENGINE_DEAD, f"{error}, after {num_tokens} tokens of this answer.")
                failure = EngineError(ErrorCode.ENGINE_DEAD, f"{error}.")
                num_lost += 1
            server = self._choose(request, tried) if num_lost < MAX_LOST else None
            self._counts.num_retries += server is not None
        return failure

    def _session_of(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    def _dispatch(self, deltas: list[TokenDelta]) -> None:
        self._counts.note(deltas)
        self._router.dispatch(deltas)
