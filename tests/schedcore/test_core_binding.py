"""schedcore._core keeps the promises of _core.pyi that types cannot express."""

from __future__ import annotations

import ast
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

import schedcore
from schedcore import _core
from schedcore._core import AddStatus, CoreError, Scheduler, SchedulerConfig
from schedcore.api.types import EngineStats, FinishReason, RequestClass


def small(**changes: object) -> SchedulerConfig:
    return SchedulerConfig(**{"num_units": 64, "num_layers": 8, "block_size": 4, "max_model_len": 64, **changes})


def test_every_declared_name_exists() -> None:
    declared = ast.parse((Path(schedcore.__file__).parent / "_core.pyi").read_text())
    for node in declared.body:
        if not isinstance(node, ast.ClassDef):
            continue
        there = getattr(_core, node.name)
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                assert hasattr(there, member.name), f"{node.name}.{member.name}"
            elif isinstance(member, ast.AnnAssign):
                assert hasattr(there, member.target.id), f"{node.name}.{member.target.id}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_units", 3),
        ("num_layers", 0),
        ("layers_per_unit", 0),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", -1),
        ("max_model_len", 0),
        ("max_num_waiting", 0),
        ("policy", "best"),
    ],
)
def test_a_bad_configuration_names_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        small(**{field: value})


def test_the_layout_follows_from_the_configuration() -> None:
    config = small(num_layers=6, layers_per_unit=4, max_model_len=50)
    assert (config.num_groups, config.units_per_block, config.max_blocks_per_seq) == (2, 4, 13)


@pytest.mark.parametrize("prompt", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3], np.int32), np.array([1, 2, 3])])
def test_a_prompt_may_be_any_sequence_of_integers(prompt: object) -> None:
    scheduler = Scheduler(small())
    assert scheduler.add_request(1, prompt, max_tokens=1) is AddStatus.OK
    assert scheduler.schedule(0.0).token_ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize("prompt", [[], [1, -2], [2**31], [2**80], [-(2**80)], np.array([2**40])])
def test_a_prompt_with_impossible_tokens_is_invalid(prompt: object) -> None:
    assert Scheduler(small()).add_request(1, prompt, max_tokens=1) is AddStatus.INVALID


@pytest.mark.parametrize("prompt", [[1.5], ["1"], 7, None, np.array([1.0])])
def test_a_prompt_that_is_no_sequence_of_integers_raises(prompt: object) -> None:
    with pytest.raises(TypeError):
        Scheduler(small()).add_request(1, prompt, max_tokens=1)


def test_a_prompt_that_shrinks_while_it_is_read_is_read_as_it_was() -> None:
    """Asked for its number, an item may do anything: here the list is emptied, and its memory used anew."""

    class Eraser:
        def __index__(self) -> int:
            prompt.clear()
            prompt.extend([None] * 5000)
            prompt.clear()
            return 7

    prompt: list[object] = [Eraser(), *(10**6 + i for i in range(500))]
    scheduler = Scheduler(SchedulerConfig(num_units=4000, num_layers=8, max_model_len=1024))
    assert scheduler.add_request(1, prompt, max_tokens=1) == AddStatus.OK  # type: ignore[arg-type]
    assert scheduler.schedule(0.0).token_ids.tolist() == [7, *(10**6 + i for i in range(500))]


def test_a_matrix_is_no_prompt() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        Scheduler(small()).add_request(1, np.ones((2, 2), np.int32), max_tokens=1)


def test_ids_use_all_64_bits() -> None:
    scheduler = Scheduler(small())
    assert scheduler.add_request(2**64 - 1, [1], max_tokens=1) is AddStatus.OK
    assert scheduler.schedule(0.0).request_ids.tolist() == [2**64 - 1]
    assert scheduler.abort(2**64 - 1)


def test_views_are_read_only_and_of_the_declared_types() -> None:
    scheduler = Scheduler(small())
    scheduler.add_request(1, [1, 2, 3], max_tokens=2)
    plan = scheduler.schedule(0.0)
    output = scheduler.commit(np.array([5], np.int32), 0.0)
    types = {"request_ids": np.uint64, "preempted_ids": np.uint64, "finish_reasons": np.uint8}
    types |= {"block_table_index": np.int64, "move_keys": np.uint64}
    num_arrays = 0
    for holder in (plan, output):
        for name in (name for name in dir(holder) if not name.startswith("_")):
            array = getattr(holder, name)
            if isinstance(array, np.ndarray):
                num_arrays += 1
                assert array.dtype == types.get(name, np.int32), name
                assert not array.flags.writeable
                assert array.size == 0 or not array.flags.owndata
    assert num_arrays == 14 + 6 + 2 + 6 + 6  # of tokens and sequences, forms, copies, moves, the output


def test_steady_decoding_makes_no_new_views() -> None:
    scheduler = Scheduler(small())
    scheduler.add_request(1, [1, 2, 3], max_tokens=20)
    for _ in range(3):
        plan = scheduler.schedule(0.0)
        seen = plan.positions, plan.seq_lens
        scheduler.commit(np.array([5], np.int32), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan.positions is seen[0]
    assert plan.positions.tolist() == [5]
    assert plan.seq_lens is seen[1]


def test_a_view_keeps_its_scheduler_s_memory_alive() -> None:
    scheduler = Scheduler(small())
    scheduler.add_request(1, [1, 2, 3], max_tokens=2)
    tokens = scheduler.schedule(0.0).token_ids
    del scheduler
    gc.collect()
    assert tokens.tolist() == [1, 2, 3]


def test_a_scheduler_is_no_reference_cycle() -> None:
    class Watched(Scheduler):
        pass

    scheduler = Watched(small())
    scheduler.add_request(1, [1, 2, 3], max_tokens=2)
    assert scheduler.schedule(0.0).positions.size == 3
    watch = weakref.ref(scheduler)
    gc.disable()
    try:
        del scheduler
        assert watch() is None
    finally:
        gc.enable()


def test_breaking_the_protocol_raises_core_error() -> None:
    scheduler = Scheduler(small())
    none = np.array([], np.int32)
    with pytest.raises(CoreError, match="without an open plan"):
        scheduler.commit(none, 0.0)
    scheduler.add_request(1, [1, 2, 3], max_tokens=2)
    scheduler.schedule(0.0)
    with pytest.raises(CoreError, match="while a plan is open"):
        scheduler.schedule(0.0)
    with pytest.raises(CoreError, match="one token per entry"):
        scheduler.commit(none, 0.0)
    with pytest.raises(CoreError, match="negative"):
        scheduler.commit(np.array([-2], np.int32), 0.0)


def test_errors_name_no_path_of_the_machine_that_built_them() -> None:
    with pytest.raises(CoreError) as caught:
        Scheduler(small()).commit(np.array([], np.int32), 0.0)
    assert str(caught.value).startswith("cpp/core/scheduler/scheduler.cpp:")


def test_an_empty_plan_is_false_and_needs_no_commit() -> None:
    scheduler = Scheduler(small())
    assert not scheduler.has_work()
    assert not scheduler.schedule(0.0)
    plan = scheduler.schedule(1.0)
    assert (plan.num_tokens, plan.num_seqs, plan.step_id) == (0, 0, 0)


def test_statistics_are_those_of_engine_stats() -> None:
    stats = Scheduler(small()).stats()
    of_the_engine = {"step_seconds", "schedule_seconds", "commit_seconds", "execute_seconds"}
    of_the_engine |= {"block_bytes", "disk_bytes", "max_disk_bytes", "guess_seconds"}
    of_the_engine |= {"pull_seconds", "num_given_blocks", "num_refused_peers", "num_session_moves"}
    of_other_engines = {"servers", "num_retries"}  # gateway/stock
    of_other_engines |= {"nodes", "num_routed", "num_stale_incarnations", "num_desired_nodes"}  # gateway/fleet
    assert set(stats) == set(EngineStats.__struct_fields__) - of_the_engine - of_other_engines
    assert len(stats["num_running"]) == len(stats["num_waiting"]) == len(RequestClass)
    assert len(stats["num_finished"]) == len(FinishReason)


def test_step_time_is_split_among_classes_by_their_tokens() -> None:
    scheduler = Scheduler(small(policy="hocket"))

    def step(now: float, seconds: float) -> None:
        num_samples = len(scheduler.schedule(now).sample_seqs)
        scheduler.commit(np.ones(num_samples, np.int32), now + seconds)

    scheduler.add_request(1, [1] * 8, max_tokens=2, request_class=int(RequestClass.OFFLINE))
    step(0.0, 2.0)
    assert scheduler.stats()["class_seconds"] == [0.0, 2.0, 0.0]
    assert scheduler.stats()["offline_only_seconds"] == 2.0
    scheduler.add_request(2, [2] * 3, max_tokens=1, request_class=int(RequestClass.ONLINE), ttft_target=100.0)
    step(2.0, 4.0)
    assert scheduler.stats()["class_seconds"] == pytest.approx([3.0, 3.0, 0.0])
    assert scheduler.stats()["offline_only_seconds"] == 2.0
