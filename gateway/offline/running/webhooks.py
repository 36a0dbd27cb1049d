"""Delivers the outbox: signed, again with growing pauses while a receiver does not answer 2xx, also after a restart."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway import __version__
from gateway.base.supervision import Supervisor
from gateway.config.standard_webhooks import sign
from gateway.config.webhook_targets import is_private_literal, is_public
from gateway.offline.store.outbox import OutboxMessage
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import StorageFullError, UnavailableError

# After each attempt that failed; Standard Webhooks' suggestion. Then the message is dropped: three days have passed.
PAUSES_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
_GONE = "410"  # the receiver wants no more of them
_TIMEOUT = aiohttp.ClientTimeout(total=15)
_AT_ONCE = 64
_PER_TENANT = 8  # receivers at once
_MAX_SLEEP_SECONDS = 60.0
_TROUBLE_SECONDS = 5.0

_log = logging.getLogger("hocket.webhooks")


class PublicResolver(AbstractResolver):
    """Names that lead to private addresses lead nowhere. What was looked at here is what is connected to."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public = [entry for entry in found if is_public(ipaddress.ip_address(entry["host"].partition("%")[0]))]
        if not public:
            raise OSError(errno.EHOSTUNREACH, f"{host} is not a public address")
        return public

    async def close(self) -> None:
        await self._resolver.close()


def deliver_webhooks(store: OfflineStore, supervisor: Supervisor) -> Callable[[web.Application], AsyncIterator[None]]:
    """A cleanup context; the store's encloses it."""

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with supervisor.running("webhook_delivery", Courier(store).run):
            yield

    return running


class Courier:
    """Each receiver of a tenant is served by itself, one message at a time: one that answers slowly holds up nobody
    else, and a tenant with many such has a bounded number of them.
    """

    def __init__(self, store: OfflineStore, chance: Callable[[], float] = random.random) -> None:
        self._store = store
        self._chance = chance  # uniform in [0, 1)
        self._deliveries: dict[tuple[str, str], asyncio.Task[None]] = {}  # by tenant and receiver

    async def run(self) -> None:
        agent = {"User-Agent": f"hocket/{__version__}"}
        public = aiohttp.TCPConnector(resolver=PublicResolver())
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=agent) as trusted,
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=agent, connector=public) as others,
        ):
            try:
                while True:
                    self._store.posted.clear()
                    pause = await self._look(trusted, others)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._store.posted.wait()
            finally:
                for task in self._deliveries.values():
                    task.cancel()
                await asyncio.gather(*self._deliveries.values(), return_exceptions=True)

    async def _look(self, trusted: aiohttp.ClientSession, others: aiohttp.ClientSession) -> float:
        """Begins to deliver what is due and has a turn. The seconds until there is more to do, if nothing is posted."""
        try:
            now = self._store.now()
            # One that ends while the store is asked may stand in the answer as it was before: the next look has it
            busy = frozenset(self._deliveries)
            for message in await self._store.due_webhooks(2 * _PER_TENANT):
                if (message.tenant, message.receiver) not in busy and self._has_turn(message):
                    self._begin(message, trusted if message.is_trusted else others)
            due_at = await self._store.next_webhook_at(after=int(now))
        except (StorageFullError, UnavailableError) as error:
            _log.warning("Webhooks pause: %s", error.message)
            return _TROUBLE_SECONDS
        except Exception:
            _log.exception("Webhooks pause")
            return _TROUBLE_SECONDS
        return _MAX_SLEEP_SECONDS if due_at is None else min(_MAX_SLEEP_SECONDS, max(0.0, due_at - now))

    def _has_turn(self, message: OutboxMessage) -> bool:
        if (message.tenant, message.receiver) in self._deliveries or len(self._deliveries) >= _AT_ONCE:
            return False
        return sum(tenant == message.tenant for tenant, _ in self._deliveries) < _PER_TENANT

    def _begin(self, message: OutboxMessage, session: aiohttp.ClientSession) -> None:
        key = message.tenant, message.receiver
        self._deliveries[key] = task = asyncio.create_task(self._deliver_or_wait(message, session))
        task.add_done_callback(lambda _: self._end(key))

    def _end(self, key: tuple[str, str]) -> None:
        del self._deliveries[key]
        self._store.posted.set()  # there may be more for the same receiver

    async def _deliver_or_wait(self, message: OutboxMessage, session: aiohttp.ClientSession) -> None:
        try:
            await self._deliver(message, session)
        except Exception as error:  # what became of it cannot be written down: it is sent again, but not at once
            _log.warning("Webhook %s waits: %s", message.id, error)
            await asyncio.sleep(_TROUBLE_SECONDS)

    async def _deliver(self, message: OutboxMessage, session: aiohttp.ClientSession) -> None:
        problem = await self._attempt(message, session)
        if problem is None:
            await self._store.remove_webhook(message.sequence)
            return
        is_last = message.num_attempts >= len(PAUSES_SECONDS) or problem == _GONE
        _log.log(
            logging.ERROR if is_last else logging.WARNING,
            "Webhook %s to %s: attempt %d: %s%s",
            message.id,
            _place(message.url),
            message.num_attempts + 1,
            problem,
            "; it is dropped" if is_last else "",
        )
        if is_last:
            await self._store.remove_webhook(message.sequence)
        else:
            pause = PAUSES_SECONDS[message.num_attempts] * (1.0 + 0.1 * self._chance())
            await self._store.postpone_webhook(message.sequence, pause)

    async def _attempt(self, message: OutboxMessage, session: aiohttp.ClientSession) -> str | None:
        """What went wrong; None if it was received."""
        secrets = self._store.webhooks.secrets.get(message.tenant)
        if not secrets:
            return "there is no secret any more to sign it with"
        headers = sign(secrets, message.id, self._store.now.wall(), message.body) | {"Content-Type": "application/json"}
        try:
            url = URL(message.url)
            if not message.is_trusted and is_private_literal(url.host or ""):  # addresses are not resolved
                return f"{url.host} is not a public address"
            # Redirects are not followed: they would lead around the check of addresses
            async with session.post(url, data=message.body, headers=headers, allow_redirects=False) as response:
                return None if 200 <= response.status < 300 else str(response.status)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            return str(error) or type(error).__name__


def _place(url: str) -> str:
    """For the log: paths and queries of webhooks are often secrets."""
    return str(URL(url).origin())
