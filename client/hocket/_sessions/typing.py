"""When to tell the server that somebody types: at most once per interval, the latest draft last, never in the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from time import monotonic

from hocket._exceptions import APIStatusError, RateLimitError

PAUSE_SECONDS = 5.0  # after a failure
IDLE_SECONDS = 30.0  # without typing; then the thread ends, and the next key press starts another


class TypingPace:
    """Time is an argument. A server that knows no advisories is not asked again."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = 0.0
        self.is_off = False

    def delay(self, now: float) -> float:
        """Seconds until the next notice may go; 0 if now."""
        return max(0.0, self._next - now)

    def sent(self, now: float) -> None:
        self._next = now + self._interval

    def failed(self, error: Exception, now: float) -> None:
        if isinstance(error, APIStatusError) and 400 <= error.status_code < 500 and error.status_code not in (408, 429):
            self.is_off = True
        wait = error.retry_after if isinstance(error, RateLimitError) else None
        self._next = max(self._next, now + (PAUSE_SECONDS if wait is None else wait))


class TypingThread:
    """`send` is called on a thread of its own; what it raises is kept from the caller."""

    def __init__(self, send: Callable[[str | None], object], interval: float) -> None:
        self._send = send
        self._pace = TypingPace(interval)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._has_draft = False
        self._draft: str | None = None
        self._is_closed = False

    def offer(self, draft: str | None) -> None:
        with self._changed:
            if self._is_closed or self._pace.is_off:
                return
            self._draft, self._has_draft = draft, True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hocket-typing", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self) -> None:
        """What has not been sent is out of date."""
        with self._changed:
            self._has_draft = False

    def close(self) -> None:
        with self._changed:
            self._is_closed, self._has_draft = True, False
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while taken := self._take():
            try:
                self._send(taken[0])
            except Exception as error:
                self._pace.failed(error, monotonic())

    def _take(self) -> tuple[str | None] | None:
        """The draft, when its time has come. None: the thread is over."""
        with self._changed:
            while not self._is_closed:
                delay = self._pace.delay(monotonic())
                if self._has_draft and not delay:
                    self._has_draft = False
                    self._pace.sent(monotonic())
                    return (self._draft,)
                was_woken = self._changed.wait(delay if self._has_draft else IDLE_SECONDS)
                if not was_woken and not self._has_draft:
                    break
            self._thread = None
            return None


class TypingTask:
    """The same with a task of the running event loop."""

    def __init__(self, send: Callable[[str | None], Awaitable[object]], interval: float) -> None:
        self._send = send
        self._pace = TypingPace(interval)
        self._task: asyncio.Task[None] | None = None
        self._has_draft = False
        self._draft: str | None = None

    def offer(self, draft: str | None) -> None:
        if self._pace.is_off:
            return
        self._draft, self._has_draft = draft, True
        if self._task is None or self._task.done():
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # outside of any loop: nobody to send it
                return
            self._task = loop.create_task(self._run())

    def drop(self) -> None:
        """What has not been sent is out of date."""
        self._has_draft = False

    async def close(self) -> None:
        self.drop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._has_draft and not self._pace.is_off:
            if delay := self._pace.delay(monotonic()):
                await asyncio.sleep(delay)  # meanwhile there may be a newer draft, or none any more
                continue
            draft, self._has_draft = self._draft, False
            self._pace.sent(monotonic())
            try:
                await self._send(draft)
            except Exception as error:
                self._pace.failed(error, monotonic())
