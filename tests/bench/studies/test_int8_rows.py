"""Some requests in int8: the tables have every case, hidden states only where they are smaller than K and V."""

from __future__ import annotations

import pickle

from bench.studies.apt_serve import LONGBENCH
from bench.studies.united import int8_rows

GROUPED = int8_rows.Case("llama-3.1-8b", 24, LONGBENCH, (8,))
MULTI_HEAD = int8_rows.Case("opt-13b", 40, LONGBENCH, (3,))
SCALE = int8_rows.Scale(60, num_seeds=2, cases=(GROUPED, MULTI_HEAD))


def test_every_case_is_compared() -> None:
    document = int8_rows.build(SCALE, 1, None)
    _, attained, gains = document.tables
    assert len(attained.rows) == len(gains.rows) == 2
    hidden = [column.name for column in attained.columns].index(int8_rows.HIDDEN.name)
    grouped, multi_head = (row[hidden] for row in attained.rows)
    assert grouped is None
    assert multi_head is not None


def test_requests_are_kept_in_int8_where_memory_is_short() -> None:
    some = int8_rows.run_one(int8_rows.INT8, GROUPED, 8, SCALE, seed=0)
    none = int8_rows.run_one(int8_rows.KV, GROUPED, 8, SCALE, seed=0)
    assert some.actions.num_conversions[int8_rows.TO_INT8] > 0
    assert none.actions.num_conversions[int8_rows.TO_INT8] == 0


def test_twice_the_memory_is_twice_in_another_process() -> None:
    once, twice = (int8_rows.engine_of(s, GROUPED) for s in (int8_rows.KV, pickle.loads(pickle.dumps(int8_rows.TWICE))))
    assert twice.num_units == 2 * once.num_units
