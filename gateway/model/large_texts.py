"""Large texts are encoded in a process of their own (text_process.py), in a small share of one core.

A thread of the gateway would take a core from the engine for as long as a text is large, and hold up every token of
everybody. The process starts with the first large text and ends when there has been none for a while; where it cannot
be had, the calling thread does its work.
"""

from __future__ import annotations

import array
import contextlib
import logging
import subprocess
import sys
import threading
import time

from tokenizers import Tokenizer as Backend

from gateway.model.text_process import TOKEN_IDS, read_frame, write_frame

logger = logging.getLogger(__name__)
_ATTEMPTS = 2  # the first may meet a process that is about to end for want of work
MAX_SECONDS = 120.0  # for a text; who needs longer is stopped


class LargeTexts:
    """Thread-safe; one text at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def encode(self, text: str) -> list[int]:
        """Without special tokens around it. Blocks the calling thread, not the interpreter."""
        with self._lock:
            give_up_at = time.monotonic() + MAX_SECONDS
            for _ in range(_ATTEMPTS):
                if time.monotonic() >= give_up_at:
                    break
                with contextlib.suppress(OSError):
                    if (ids := self._ask(text)) is not None:
                        return ids
                self._stop()
        if not self._is_closed:
            logger.warning("the process for large texts has failed: a thread of the gateway encodes instead")
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def close(self) -> None:
        """Ends the process; whoever waits for it goes on at once."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._stop()

    def _ask(self, text: str) -> list[int] | None:
        process = self._process or self._start()
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(MAX_SECONDS, process.kill)
        deadline.start()
        try:
            write_frame(process.stdin, text.encode("utf-8", "surrogatepass"))
            answer = read_frame(process.stdout)
        finally:
            deadline.cancel()
        return None if answer is None else array.array(TOKEN_IDS, answer).tolist()

    def _start(self) -> subprocess.Popen[bytes] | None:
        if self._is_closed:
            return None
        command = [sys.executable, "-m", "gateway.model.text_process"]
        # Not for Ctrl-C: the gateway drains first, and ends it.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        assert self._process.stdin is not None
        write_frame(self._process.stdin, self._backend.to_str().encode())
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()
