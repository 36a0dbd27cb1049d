"""Requests with images until their prompts are there: one thread beside the steps prepares them, tenants in turns."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from schedcore.api.types import EngineError, EngineRequest, ErrorCode, ImageLimits, RequestClass

logger = logging.getLogger("vllm_engine")

_FAILED = "the model's processor of images failed; the engine's log says more"


class Grower(Protocol):
    """vllm_engine/images/image_prompts.py"""

    @property
    def limits(self) -> ImageLimits: ...
    def grow(self, token_ids: list[int], images: Sequence[bytes], adapter: Any) -> Any:
        """Raises ValueError."""


class Grown(NamedTuple):
    key: Any
    prompt: Any  # what the grower made; None: there is an error
    error: EngineError | None
    seconds: float  # since it was begun


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One asking: another one under the same key is not the same."""

    request: EngineRequest
    token_ids: list[int]
    adapter: Any
    began: float


_Line = OrderedDict[str, OrderedDict[Hashable, _Job]]


class GrowingPrompts:
    """Calls come from one thread. Who came first goes first, people before offline work, tenants in turns."""

    def __init__(self, grower: Grower, clock: Callable[[], float]) -> None:
        self._grower, self._clock = grower, clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="images")
        self._changes = threading.Condition()  # of all below
        # By whether it is offline, then by tenant in the order of their turns.
        self._lines: tuple[_Line, _Line] = OrderedDict(), OrderedDict()
        self._open: dict[Hashable, _Job] = {}
        self._done: list[Grown] = []

    @property
    def limits(self) -> ImageLimits:
        return self._grower.limits

    def begin(self, key: Hashable, request: EngineRequest, token_ids: list[int], adapter: Any) -> None:
        """token_ids: of the prompt, where some of the request's are output already. REQUIRES: the key is not there."""
        with self._changes:
            job = self._open[key] = _Job(request, token_ids, adapter, self._clock())
            line = self._lines[request.request_class is RequestClass.OFFLINE]
            line.setdefault(request.tenant, OrderedDict())[key] = job
        self._thread.submit(self._grow_next)

    def drop(self, key: Hashable) -> None:
        """REQUIRES: it has not been taken."""
        with self._changes:
            del self._open[key]
            self._done = [grown for grown in self._done if grown.key != key]
            for line in self._lines:
                for tenant, jobs in list(line.items()):
                    if jobs.pop(key, None) is not None and not jobs:
                        del line[tenant]

    def take(self) -> list[Grown]:
        """Those that are done, in the order in which they were."""
        with self._changes:
            taken, self._done = self._done, []
            for grown in taken:
                del self._open[grown.key]
        return taken

    def wait(self, seconds: float) -> None:
        """Until one is done, at most so long."""
        with self._changes:
            self._changes.wait_for(lambda: self._done or not self._open, seconds)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _grow_next(self) -> None:
        with self._changes:
            found = self._next()
        if found is None:  # it was dropped
            return
        key, job = found
        prompt, error = self._grow(job)
        with self._changes:
            if self._open.get(key) is job:  # it was not dropped meanwhile
                self._done.append(Grown(key, prompt, error, self._clock() - job.began))
                self._changes.notify_all()

    def _next(self) -> tuple[Hashable, _Job] | None:
        for line in self._lines:
            if line:
                tenant, jobs = line.popitem(last=False)
                found = jobs.popitem(last=False)
                if jobs:
                    line[tenant] = jobs  # behind the others
                return found
        return None

    def _grow(self, job: _Job) -> tuple[Any, EngineError | None]:
        try:
            return self._grower.grow(job.token_ids, job.request.images, job.adapter), None
        except ValueError as error:
            return None, EngineError(ErrorCode.INVALID, str(error))
        except Exception:
            logger.exception("a prompt with images failed")
            return None, EngineError(ErrorCode.INTERNAL, _FAILED)
