"""How many threads a model in the engine's own process gets: vLLM's own rules for a worker. Needs vLLM."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("vllm")

import torch
from vllm.config import VllmConfig

from vllm_engine.runner.cpu_threads import BINDING, THREADS, limit_threads

CORES = sorted(os.sched_getaffinity(0))
Limits = tuple[list[int], list[set[int]]]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Threads and cores, as they are said."""
    threads: list[int] = []
    cores: list[set[int]] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, said: cores.append(set(said)))
    for name in (THREADS, BINDING):
        monkeypatch.delenv(name, raising=False)
    return threads, cores


@pytest.mark.skipif(len(CORES) < 2, reason="there is none to leave")
def test_a_core_is_left_to_the_gateway(limits: Limits) -> None:
    limit_threads(VllmConfig())
    (num_threads,), (cores,) = limits
    assert 1 <= num_threads < len(cores) <= len(CORES)


def test_who_says_how_many_gets_them(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "3")
    limit_threads(VllmConfig())
    assert limits == ([], [])


def test_nobody_is_bound_where_nobody_is_to_be(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING, "nobind")
    limit_threads(VllmConfig())
    assert limits == ([], [])


def test_cores_by_name_are_a_thread_each(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING, ",".join(map(str, CORES)))
    monkeypatch.setenv(THREADS, "7")  # as vLLM has it: the list counts
    limit_threads(VllmConfig())
    assert limits == ([len(CORES)], [set(CORES)])
