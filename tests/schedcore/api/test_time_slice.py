"""A shorter slice changes nothing else about a thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from schedcore.api.time_slice import shorten_time_slice

T = TypeVar("T")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")


def in_new_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def standing() -> tuple[int, int]:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, 0)


def test_policy_and_nice_stay() -> None:
    def shorten() -> tuple[int, int]:
        shorten_time_slice()
        return standing()

    assert in_new_thread(shorten) == standing()


def test_a_thread_that_somebody_has_set_up_otherwise_is_left_alone() -> None:
    def shorten() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return shorten_time_slice(), os.sched_getscheduler(0)

    assert in_new_thread(shorten) == (False, os.SCHED_BATCH)
