"""An engine that is started again when it dies. Whoever was waiting for the dead one has had its errors by then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from gateway.base.supervision import Supervisor
from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.local_engine import LocalEngine
from gateway.engine.restart_policy import RestartPolicy
from schedcore.api.types import Advisory, CacheReset, EngineInfo, EngineRequest, EngineStats, SessionState

_log = logging.getLogger("hocket.gateway")


class SupervisedEngine:
    """An EngineClient over one LocalEngine after another.

    An engine that never became ready is not started again: what is wrong with it is likely to stay wrong. Later ones
    may fail to start as often as the policy allows.
    """

    def __init__(
        self,
        make_engine: Callable[[int], LocalEngine],
        policy: RestartPolicy,
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """make_engine(i): not yet started; 0 is the first, i the one after restart number i."""
        self.num_restarts = 0
        self._make_engine = make_engine
        self._policy = policy
        self._supervisor = supervisor
        self._clock = clock
        self._engine = make_engine(0)
        self._has_given_up = True  # so far, nobody would start it again
        self._watch = contextlib.AsyncExitStack()

    @property
    def info(self) -> EngineInfo:
        self._check_alive()
        return self._engine.info

    @property
    def is_alive(self) -> bool:
        return self._engine.is_alive

    @property
    def death(self) -> str | None:
        """None while it is started again."""
        return self._engine.death if self._has_given_up else None

    @property
    def trouble(self) -> str | None:
        """It serves, or it does not."""
        return None

    @property
    def pid(self) -> int | None:
        return self._engine.pid

    def stats(self) -> EngineStats | None:
        return self._engine.stats()

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        self._check_alive()
        return self._engine.stream(requests)

    async def advise(self, advisory: Advisory) -> SessionState:
        self._check_alive()
        return await self._engine.advise(advisory)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        self._check_alive()
        return await self._engine.reset_prefix_cache(request_id)

    async def start(self) -> None:
        await self._engine.start()
        self._has_given_up = False
        await self._watch.enter_async_context(self._supervisor.running("engine_watch", self._keep_alive))

    async def close(self) -> None:
        await self._watch.aclose()
        self._has_given_up = True
        await self._engine.close()

    def _check_alive(self) -> None:
        if not self._has_given_up and not self._engine.is_alive:
            reason = self._engine.death or "The engine died."
            raise EngineDeadError(f"{reason} It is being started again.", code="restarting")

    async def _keep_alive(self) -> None:
        while True:
            await self._engine.wait_until_dead()
            delay = self._policy.delay(self._clock())
            if delay is None:
                self._has_given_up = True
                _log.error("The engine is not started again: it has died too often")
                await asyncio.Event().wait()  # for close()
            else:
                await asyncio.sleep(delay)
                await self._restart()

    async def _restart(self) -> None:
        await self._engine.close()
        self.num_restarts += 1
        self._engine = self._make_engine(self.num_restarts)
        try:
            await self._engine.start()
            _log.warning("The engine was started again, restart %d", self.num_restarts)
        except EngineDeadError:
            pass  # which starts the next turn
        except Exception:
            await self._engine.close()  # so that it is dead, and the next turn starts another
            raise
