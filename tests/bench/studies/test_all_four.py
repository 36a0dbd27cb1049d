"""All four papers at once: the tables have every setting, and every step has a reason."""

from __future__ import annotations

from bench.studies.united import all_four

SCALE = all_four.Scale(10.0, num_seeds=2, num_questions=40, loads=(1.0,))


def test_every_part_is_left_out_once_and_compared() -> None:
    tables = {table.title: table for table in all_four.build(SCALE, 1, None).tables}
    names = [setting.name for setting in all_four.SETTINGS]
    assert [row[0] for row in tables["Load 1"].rows] == names
    assert [row[1] for row in tables["What each brings"].rows] == names[1:]


def test_actions_are_counted_in_every_step() -> None:
    run = all_four.run_one(all_four.ALL, 1.0, SCALE, seed=0)
    assert sum(run.actions.num_ratio_steps) == run.num_steps > 0
    assert run.actions.num_hit_tokens[0] > 0  # questions about one document share it
