from __future__ import annotations

import pytest

from vllm_engine.compat import CACHE_HOOKS, HOOKS, IncompatibleVllmError, check_hooks, check_version


class AsKnown:
    def schedule(self, throttle_prefills=False): ...
    def _reserve_prefill_lookahead(self, request, num_computed_tokens, num_new_tokens): ...
    def _preempt_request(self, request, timestamp, drop_stale_output=False): ...
    def add_request(self, request): ...
    def finish_requests(self, request_ids, finished_status): ...
    def update_from_output(self, scheduler_output, model_runner_output): ...


def test_hooks_as_they_are_known_are_taken() -> None:
    check_hooks(AsKnown)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_is_gone_is_named(name: str) -> None:
    gone = type("Gone", (), {hook: getattr(AsKnown, hook) for hook in HOOKS if hook != name})
    with pytest.raises(IncompatibleVllmError, match=rf"no {name}\(\) any more.*--scheduling-policy vllm"):
        check_hooks(gone)


def test_a_hook_that_takes_something_else_is_named() -> None:
    class Renamed(AsKnown):
        def _preempt_request(self, victim, timestamp): ...

    class NeedsMore(AsKnown):
        def schedule(self, throttle_prefills, budget): ...

    for changed in (Renamed, NeedsMore):
        with pytest.raises(IncompatibleVllmError, match="is known"):
            check_hooks(changed)


def test_a_cache_that_gives_blocks_back_in_another_way_is_named() -> None:
    with pytest.raises(IncompatibleVllmError, match=r"cache manager has no free\(\)"):
        check_hooks(AsKnown, CACHE_HOOKS, "cache manager")


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.1"])
def test_known_versions_are_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0", "nightly"])
def test_unknown_versions_are_refused_by_name(version: str) -> None:
    with pytest.raises(IncompatibleVllmError, match=version):
        check_version(version)
