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
from gateway.offline.outbox import OutboxMessage
from gateway.offline.store import OfflineStore
from gateway.protocol.errors import StorageFullError, UnavailableError
from gateway.services import SERVICES
from gateway.standard_webhooks import sign
from gateway.webhook_targets import is_private_literal, is_public

# After each attempt that failed; Standard Webhooks' suggestion. Then the message is dropped: three days have passed.
PAUSES_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
_GONE = "410"  # the receiver wants no more of them
_TIMEOUT = aiohttp.ClientTimeout(total=15)
_AT_ONCE = 16
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


async def deliver_webhooks(app: web.Application) -> AsyncIterator[None]:
    """A cleanup context; the store's encloses it."""
    store = app[SERVICES].offline
    if store is None:
        yield
        return
    task = asyncio.create_task(Courier(store).run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Courier:
    def __init__(self, store: OfflineStore, chance: Callable[[], float] = random.random) -> None:
        self._store = store
        self._chance = chance  # uniform in [0, 1)

    async def run(self) -> None:
        agent = {"User-Agent": f"hocket/{__version__}"}
        public = aiohttp.TCPConnector(resolver=PublicResolver())
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=agent) as trusted,
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=agent, connector=public) as others,
        ):
            while True:
                self._store.posted.clear()
                try:
                    pause = await self._round(trusted, others)
                except (StorageFullError, UnavailableError) as error:
                    _log.warning("Webhooks pause: %s", error.message)
                    pause = _TROUBLE_SECONDS
                except Exception:
                    _log.exception("Webhooks pause")
                    pause = _TROUBLE_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._store.posted.wait()

    async def _round(self, trusted: aiohttp.ClientSession, others: aiohttp.ClientSession) -> float:
        """Delivers what is due. The seconds until the next is."""
        while messages := await self._store.due_webhooks(_AT_ONCE):
            sessions = [trusted if message.is_trusted else others for message in messages]
            await asyncio.gather(*map(self._deliver, messages, sessions))
        due_at = await self._store.next_webhook_at()
        if due_at is None:
            return _MAX_SLEEP_SECONDS
        return min(_MAX_SLEEP_SECONDS, max(0.0, due_at - self._store.now()))

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
        headers = sign(secrets, message.id, self._store.now(), message.body) | {"Content-Type": "application/json"}
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
