"""Large texts are encoded in a process of their own (text_process.py), in a small share of one core.

A thread of the gateway would take a core from the engine for as long as a text is large, and hold up every token of
everybody. So the ids stay in that process, too, until the text has no more of them than it may: then they come in
small parts. The process starts with the first large text and ends when there has been none for a while; where it cannot
be had, the calling thread does its work.
"""

from __future__ import annotations

import array
import collections
import contextlib
import fcntl
import itertools
import logging
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from gateway.model.text_pieces import encoding_here
from gateway.model.text_process import LENGTH, REQUEST, TOKEN_IDS, Step, read_frame
from gateway.model.work_pool import Work

logger = logging.getLogger(__name__)
_ATTEMPTS = 2  # the first may meet a process that is about to end for want of work
_PIPE_BYTES = 2**20  # a piece at a time, whatever its letters
_TAKING_COST = 256  # in characters, of a part of the ids
MAX_SECONDS = 120.0  # for a piece of a text; who needs longer is stopped


class LargeTexts:
    """Thread-safe; one piece at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._numbers = itertools.count()
        self._forgotten: collections.deque[int] = collections.deque()

    def encoding(self, pieces: list[str], max_tokens: int | None) -> Work[list[int] | None]:
        """Without special tokens around it; None where there are more than max_tokens.

        REQUIRES: a piece at least. A step blocks its thread, not the interpreter.
        """
        give_up_at = time.monotonic() + MAX_SECONDS
        for _ in range(_ATTEMPTS):
            text = next(self._numbers)
            try:
                return (yield from self._asked(text, pieces, max_tokens))
            except _NoAnswerError:
                if self._is_closed or time.monotonic() >= give_up_at:
                    break
            finally:
                self._forgotten.append(text)  # told with the next request: whoever gives up a text waits for nothing
        if not self._is_closed:
            logger.warning("the process for large texts has failed: a thread of the gateway encodes instead")
        return (yield from encoding_here(self._backend, pieces, max_tokens))

    def close(self) -> None:
        """Ends the process; whoever waits for it goes on at once."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._stop()

    def _asked(self, text: int, pieces: list[str], max_tokens: int | None) -> Work[list[int] | None]:
        """Raises _NoAnswerError."""
        process, ids, num_tokens = self._process, [], 0
        for i, piece in enumerate(pieces):
            step = Step.END if i == len(pieces) - 1 else Step.ADD
            request = REQUEST.pack(step, text, 0) + piece.encode("utf-8", "surrogatepass")
            answer = self._ask(process if i else None, request)
            process, num_tokens, ids = answer.process, answer.num_tokens, answer.ids
            if max_tokens is not None and num_tokens > max_tokens:
                return None
            yield len(piece)
        while len(ids) < num_tokens:
            ids += self._ask(process, REQUEST.pack(Step.TAKE, text, len(ids))).ids
            yield _TAKING_COST
        return ids

    def _ask(self, expected: subprocess.Popen[bytes] | None, request: bytes) -> _Answer:
        """expected: the process that has the pieces before, if there are any. Raises _NoAnswerError."""
        with self._lock:
            if expected is not None and self._process is not expected:
                raise _NoAnswerError  # of that one; the next serves others
            try:
                process = self._process or self._start()
                deadline = time.monotonic() + MAX_SECONDS
                while self._forgotten:
                    _send(process, REQUEST.pack(Step.FORGET, self._forgotten.popleft(), 0), deadline)
                _send(process, request, deadline)
                assert process.stdout is not None
                answer = read_frame(_PatientSource(process.stdout.fileno(), deadline))
                if answer is None:
                    raise _NoAnswerError
            except (OSError, _NoAnswerError):
                self._stop()
                raise _NoAnswerError from None
        (num_tokens,) = LENGTH.unpack_from(answer)
        return _Answer(process, num_tokens, array.array(TOKEN_IDS, answer[LENGTH.size :]).tolist())

    def _start(self) -> subprocess.Popen[bytes]:
        """Raises OSError, _NoAnswerError."""
        if self._is_closed:
            raise _NoAnswerError
        command = [sys.executable, "-m", "gateway.model.text_process"]
        # Not for Ctrl-C: the gateway drains first, and ends it.
        process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        self._process = process
        self._forgotten.clear()
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # a small pipe takes a piece in several parts
            fcntl.fcntl(process.stdin.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        _send(process, self._backend.to_str().encode(), time.monotonic() + MAX_SECONDS)
        return process

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


class _NoAnswerError(Exception):
    """The process is gone, late or another one."""


@dataclass(frozen=True, slots=True)
class _Answer:
    process: subprocess.Popen[bytes]
    num_tokens: int  # of the text so far
    ids: list[int]


@dataclass(frozen=True, slots=True)
class _PatientSource:
    descriptor: int
    deadline: float  # time.monotonic()

    def read(self, num_bytes: int, /) -> bytes:
        _wait_for(self.descriptor, select.POLLIN, self.deadline)
        return os.read(self.descriptor, num_bytes)


def _send(process: subprocess.Popen[bytes], content: bytes, deadline: float) -> None:
    """Raises OSError, _NoAnswerError."""
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    rest = memoryview(LENGTH.pack(len(content)) + content)
    while rest:
        _wait_for(pipe, select.POLLOUT, deadline)
        with contextlib.suppress(BlockingIOError):
            rest = rest[os.write(pipe, rest) :]


def _wait_for(descriptor: int, event: int, deadline: float) -> None:
    """Raises _NoAnswerError."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, 1e3 * (deadline - time.monotonic()))):
        raise _NoAnswerError
