"""A shorter slice changes nothing else about a thread; who gives way rests where its core is wanted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TypeVar

import pytest

from schedcore import _core
from schedcore.api.time_slice import giving_way, shorten_time_slice

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


def rests_while_computing(core: int, report: Connection) -> None:
    os.sched_setaffinity(0, {core})
    end = time.monotonic() + 0.5
    with giving_way():
        while time.monotonic() < end:
            pass
    report.send(_core.num_rests())


def test_who_gives_way_rests_where_its_core_is_wanted() -> None:
    core = min(os.sched_getaffinity(0))
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    command = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    other = subprocess.Popen(command)
    try:
        process = multiprocessing.get_context("spawn").Process(target=rests_while_computing, args=(core, theirs))
        process.start()
        rests = ours.recv()
        process.join()
    finally:
        other.kill()
        other.wait()
    assert process.exitcode == 0
    assert rests > 0


def test_a_timer_is_gone_afterwards_and_nobody_dies_of_it() -> None:
    with giving_way():
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    time.sleep(0.001)
