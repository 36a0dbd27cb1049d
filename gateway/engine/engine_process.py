"""The process of an engine, seen from outside: how it is started, and how one hears of its end.

It may be started before there is an event loop, so that it imports what takes long while the gateway does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import msgspec

from schedcore.api.config import EngineConfig


class EngineProcess:
    def __init__(self, config: EngineConfig, module: str, python: str) -> None:
        """python: the interpreter that runs the module. Raises OSError."""
        self._folder = tempfile.TemporaryDirectory(prefix="hocket-")
        self.endpoint = f"ipc://{Path(self._folder.name) / 'engine'}"
        self._exited: asyncio.Future[None] | None = None
        try:
            self._popen = subprocess.Popen(
                [python, "-m", module, "--parent", str(os.getpid()), "--endpoint", self.endpoint],
                stdin=subprocess.PIPE,
                # Ctrl-C is for the gateway, which drains before it stops the engine. No session of its own: among
                # sessions Linux shares cores evenly (autogroups), so that what stands back in the gateway's (texts,
                # checks of batches) would get half of them.
                process_group=0,
            )
        except BaseException:
            self._folder.cleanup()
            raise
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already; who waits for it hears that
            self._popen.stdin.write(msgspec.json.encode(config))
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative a signal; None while it runs."""
        return self._popen.poll()

    def terminate(self) -> None:
        self._popen.terminate()

    def kill(self) -> None:
        self._popen.kill()

    async def wait(self) -> int:
        """Its exit status."""
        if self._popen.poll() is None:
            if self._exited is None:
                self._exited = asyncio.get_running_loop().create_future()
                self._watch(self._exited)
            await asyncio.shield(self._exited)
        return self._popen.wait()

    def discard(self) -> None:
        """Nobody wants it any longer. Idempotent."""
        self._popen.kill()
        self._popen.wait()
        self.remove_folder()

    def remove_folder(self) -> None:
        """Of its endpoint. Idempotent."""
        self._folder.cleanup()

    def _watch(self, exited: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()

        def on_exit() -> None:
            if not exited.done():
                exited.set_result(None)

        def wait_in_thread() -> None:
            self._popen.wait()
            loop.call_soon_threadsafe(on_exit)

        if not hasattr(os, "pidfd_open"):  # not on Linux
            threading.Thread(target=wait_in_thread, daemon=True).start()
            return
        descriptor = os.pidfd_open(self._popen.pid)

        def on_readable() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            on_exit()

        loop.add_reader(descriptor, on_readable)
