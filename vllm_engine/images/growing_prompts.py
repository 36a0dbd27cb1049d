"""Requests with images until their prompts are there: one thread beside the steps decodes and prepares them in turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

from schedcore.api.types import EngineError, ErrorCode, ImageLimits

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


class GrowingPrompts:
    """Calls come from one thread."""

    def __init__(self, grower: Grower, clock: Callable[[], float]) -> None:
        self._grower, self._clock = grower, clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="images")
        self._open: dict[Any, tuple[Future[Any], float]] = {}  # in their order

    @property
    def limits(self) -> ImageLimits:
        return self._grower.limits

    def begin(self, key: Hashable, token_ids: list[int], images: Sequence[bytes], adapter: Any) -> None:
        """REQUIRES: the key is not there."""
        self._open[key] = self._thread.submit(self._grower.grow, token_ids, images, adapter), self._clock()

    def drop(self, key: Hashable) -> None:
        """REQUIRES: it has not been taken."""
        self._open.pop(key)[0].cancel()

    def take(self) -> list[Grown]:
        """Those that are done, in the order in which they were begun."""
        taken: list[Grown] = []
        for key, (future, began) in list(self._open.items()):
            if not future.done():
                break
            del self._open[key]
            taken.append(Grown(key, *_result(future), self._clock() - began))
        return taken

    def wait(self, seconds: float) -> None:
        """Until the first is done, at most so long."""
        if self._open:
            wait([next(iter(self._open.values()))[0]], seconds)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[Any]) -> tuple[Any, EngineError | None]:
    error = future.exception()
    if error is None:
        return future.result(), None
    if isinstance(error, ValueError):
        return None, EngineError(ErrorCode.INVALID, str(error))
    logger.error("a prompt with images failed", exc_info=error)
    return None, EngineError(ErrorCode.INTERNAL, _FAILED)
