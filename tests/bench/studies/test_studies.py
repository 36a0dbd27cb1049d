"""The studies, each from end to end in a tiny configuration, and what they are made of."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.studies import apt_serve, echo, ellm, mixed, partial_caching
from bench.studies.document import Column, Document, Panel, Series, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, Spread, longest_first_s, longest_gap_s, measure
from bench.studies.paired import gain_table, paired
from bench.studies.settings import Setting, options_text, supported
from bench.studies.study import run_study
from bench.studies.sustained import MAX_GROWTH, sustained_rate
from bench.studies.workloads import as_offline, azure_arrivals, azure_times, conversations, documents, lengths
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import NO_REQUEST, make_workload

FCFS = Setting("first", "fcfs")
PRIORITY = Setting("second", "priority")
UNKNOWN_POLICY = Setting("third", "no_such_policy")
UNKNOWN_OPTION = Setting("fourth", "fcfs", {"no_such_option": True})
SETTINGS = (FCFS, PRIORITY, UNKNOWN_POLICY, UNKNOWN_OPTION)


def parse_tables(markdown: str) -> dict[str, list[dict[str, str]]]:
    """Rows by column name, of every table under its title."""
    found: dict[str, list[dict[str, str]]] = {}
    for section in markdown.split("### ")[1:]:
        title, *lines = section.splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        header, _, *body = cells
        found[title] = [dict(zip(header, row, strict=True)) for row in body]
    return found


def check_page(document: Document, folder: Path) -> dict[str, list[dict[str, str]]]:
    """The page says what it is and what it lacks; its tables are those of the JSON."""
    document.save(folder, 1.0, "python -m bench.studies.some")
    page = (folder / f"{document.name}.md").read_text()
    assert "Simulated, not measured" in page
    assert all(name in page for name in document.cost_models)
    assert document.cost_models
    assert "- third: policy must be one of" in page
    assert "- fourth: no option no_such_option" in page
    assert (folder / f"{document.name}.png").read_bytes().startswith(b"\x89PNG")
    tables = parse_tables(page)
    exact = msgspec.json.decode(document.to_json())["tables"]
    assert {t["title"]: len(t["rows"]) for t in exact} == {title: len(rows) for title, rows in tables.items()}
    return tables


def test_apt_serve_compares_settings_with_the_papers_numbers_beside(tmp_path: Path) -> None:
    data = replace(apt_serve.SHAREGPT, rates=(1, 8))
    scale = apt_serve.Scale(
        num_requests=40, num_seeds=2, num_curve_seeds=1, num_rates=2, num_halvings=0, data_sets=(apt_serve.SHAREGPT,),
        cvs=(1.0,), table_settings=SETTINGS, curve_settings=SETTINGS[:2],
    )  # fmt: skip
    tables = check_page(apt_serve.build(scale, 1, None), tmp_path)
    table = tables["Table 5: SLO attainment (%), FCFS against adaptive scheduling"]
    assert [(row["rate"], row["CV"]) for row in table] == [("3.0", "1"), ("6.0", "1")]
    assert all(0 <= float(row["first"].split(" ± ")[0]) <= 100 for row in table)
    curve = apt_serve.run_curve(FCFS, data, scale)
    assert curve.rates == [1, 8]
    assert curve.sustained[0.6] >= curve.sustained[0.9] > 0
    assert apt_serve.paper_over_vllm("ShareGPT", 0.9, "apt") == 2.3


def test_apt_serve_shows_the_papers_attainment_for_settings_that_it_has() -> None:
    cells = {
        ("ShareGPT", 6.0, 5.0, name): [apt_serve.run_one(setting, apt_serve.SHAREGPT, 6.0, 5.0, 20, 0)]
        for name, setting in ((apt_serve.VLLM.name, FCFS), (apt_serve.APT_KV.name, FCFS), (apt_serve.APT.name, FCFS))
    }
    fives, fours, *_ = apt_serve.tables_4_and_5(cells, (apt_serve.VLLM, apt_serve.APT_KV, apt_serve.APT))
    assert [fives.rows[0][i] for i in (4, 6)] == [18.1, 67.7]
    assert [fours.rows[0][i] for i in (4, 6)] == [66.7, 67.7]


def test_echo_reports_offline_throughput_over_the_first_setting(tmp_path: Path) -> None:
    scale = echo.Scale(20.0, num_seeds=1, num_questions=30, num_chats=400, num_halvings=0, settings=SETTINGS)
    tables = check_page(echo.build(scale, 1, None), tmp_path)
    rows = tables["LooGLE-like offline work"]
    assert [row["setting"] for row in rows] == ["first", "second"]
    assert rows[0]["over the first"] == "1.00×"
    assert len(tables["Longest wait of any online request (s)"]) == 5


def test_echo_tells_the_scheduler_the_papers_targets_but_where_it_goes_by_gaps() -> None:
    by_gap = echo.BY_GAP[0]
    told = {s.name: echo.online(s, 2.0, 20.0, 0) for s in (FCFS, by_gap)}
    ttft, itl, tpot = ({n: getattr(w, f"{t}_target_ms")[0] for n, w in told.items()} for t in ("ttft", "itl", "tpot"))
    assert set(ttft.values()) == {1000.0}
    assert (itl[FCFS.name], tpot[FCFS.name]) == (math.inf, 50.0)
    assert (itl[by_gap.name], tpot[by_gap.name]) == (50.0, math.inf)


def test_mean_attainment_goes_by_the_target_that_there_is() -> None:
    workload = make_workload([0.0], Prompts.unrelated([10]), [400])
    engine = FCFS.engine(echo.base_engine())
    for targets in ((1000, 1000), (1000, None, 1000)):
        assert measure(simulate(workload.with_targets(*targets), engine)).tpot_attainment == 1.0
    for targets in ((1000, 0.1), (1000, None, 0.1)):
        assert measure(simulate(workload.with_targets(*targets), engine)).tpot_attainment == 0.0


def test_ellm_has_a_table_per_data_set_and_the_solvers(tmp_path: Path) -> None:
    data = replace(ellm.DATA_SETS[0], rates=(0.5,))
    scale = ellm.Scale(num_requests=20, num_seeds=1, data_sets=(data,), settings=SETTINGS)
    tables = check_page(ellm.build(scale, 1, None), tmp_path)
    assert len(tables) == 3
    goodput = [float(row["goodput/s"]) for title, rows in tables.items() if "long answers" in title for row in rows]
    assert len(goodput) == 2
    assert min(goodput) > 0


def test_mixed_compares_hocket_only_with_settings_that_hold_the_targets(tmp_path: Path) -> None:
    scale = mixed.Scale(20.0, num_seeds=1, num_questions=30, loads=(0.5,), settings=SETTINGS)
    document = mixed.build(scale, 1, None)
    tables = check_page(document, tmp_path)
    assert [row["setting"] for row in tables["Load 0.5"]] == [mixed.ALONE, "first", "second"]

    run = mixed.run_one(FCFS, 0.5, scale, 0)

    def runs(attainment: float, offline: float) -> list[mixed.Measurement]:
        return [replace(run, attainment=attainment, offline_tokens_per_s=offline)]

    of_load = {(1.0, "late"): runs(0.5, 900.0), (1.0, "in time"): runs(0.95, 100.0), (1.0, "hocket"): runs(0.97, 150.0)}
    found = mixed.margin(1.0, of_load)
    assert found is not None
    assert (found.best, found.gain) == ("in time", 1.5)
    assert mixed.margin(0.5, of_load) is None


def test_command_line_writes_page_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(scale: str, processes: int, seeds: int | None) -> Document:
        table = Table("Numbers", [Column("name"), Column("value", "percent")], [[scale, Spread(0.5, 0.25)]])
        return Document("some", "Some", tables=[table], cost_models={f"{processes} {seeds}"})

    arguments = ["--quick", "--seeds", "3", "--processes", "2", "--output", str(tmp_path), "--json"]
    assert run_study("some", "full", "quick", build, [*arguments, str(tmp_path / "some.json")]) == 0
    assert "50.0 ± 25.0" in capsys.readouterr().out
    assert "`2 3`" in (tmp_path / "some.md").read_text()
    found = msgspec.json.decode((tmp_path / "some.json").read_bytes())
    assert found["tables"][0]["rows"] == [["quick", {"mean": 0.5, "deviation": 0.25}]]


def test_the_same_panels_give_the_same_bytes(tmp_path: Path) -> None:
    panels = [
        Panel("lines", "x", "y", [Series("a", [1, 2], [3, 4])]),
        Panel("bars", "x", "y", [Series("a", [0, 1], [3, 4]), Series("b", [0, 1], [1, 2])], ["left", "right"]),
    ]
    for folder in ("a", "b"):
        Document("some", "Some", panels=panels).save(tmp_path / folder, 1.0, "command")
    assert (tmp_path / "a" / "some.png").read_bytes() == (tmp_path / "b" / "some.png").read_bytes()


def test_jobs_come_back_in_order_from_two_processes() -> None:
    jobs = {n: partial(pow, n, 2) for n in range(7)}
    assert list(run_all(jobs, 2, "squares").items()) == [(n, n * n) for n in range(7)]


@pytest.mark.parametrize("limit", [0.9, 3.7, 11.0])
def test_sustained_rate_is_just_below_the_limit(limit: float) -> None:
    found = sustained_rate(lambda rate: 1.0 if rate <= limit else 0.0, 0.9, start=4.0, num_halvings=6)
    assert found <= limit < found * 2 ** (1 / 2**6) * 1.000001


def test_sustained_rate_has_ends() -> None:
    assert sustained_rate(lambda rate: 0.0, 0.9, start=4.0, num_halvings=6) == 0.0
    assert sustained_rate(lambda rate: 1.0, 0.9, start=4.0, num_halvings=6) == 4.0 * MAX_GROWTH


def test_options_of_the_engine_and_of_the_scheduler_both_apply() -> None:
    setting = Setting("some", "priority", {"max_num_seqs": 7, "block_size": 32})
    engine = setting.engine(echo.base_engine())
    assert (engine.block_size, engine.policy, engine.options) == (32, "priority", {"max_num_seqs": 7})
    with pytest.raises(ValueError, match="max_num_seqs must be at least 1"):
        Setting("some", "fcfs", {"max_num_seqs": 0}).engine(echo.base_engine())
    assert options_text({"memory": 40 * 2**30, "flag": True}) == "memory=40 GiB, flag=true"
    assert supported([FCFS, UNKNOWN_POLICY], echo.base_engine())[0] == [FCFS]


# ---- workloads ----


def test_questions_about_a_document_share_its_tokens_and_nothing_else() -> None:
    pool = documents().pool(60, seed=1)
    assert len(pool) >= 60
    prompts = [pool.prompts.prompt_token_ids(i)[:20_000] for i in range(len(pool))]
    first_tokens = np.array([tokens[0] for tokens in prompts])
    together = np.flatnonzero(first_tokens == first_tokens[0])
    assert together.size > 1
    a, b = prompts[together[0]], prompts[together[1]]
    size = min(a.size, b.size)
    num_shared = int(np.argmax(a[:size] != b[:size])) if np.any(a[:size] != b[:size]) else size
    assert num_shared in {min(shared, size) for shared in documents().shared_tokens}
    assert len(set(first_tokens.tolist())) < len(pool)


def test_documents_are_mixed() -> None:
    pool = documents().pool(200, seed=0)
    first = pool.prompts.streams[pool.prompts.offsets[:-1]]
    assert np.mean(first[1:] == first[:-1]) < 0.3


def test_recorded_arrivals_keep_their_gaps_up_to_one_factor() -> None:
    times = azure_times(2.0, 100.0, seed=0)
    assert times.size == 200
    assert times[-1] == pytest.approx(100.0)
    recorded = azure_arrivals()[:201]
    assert np.allclose(np.diff(times), np.diff(recorded)[1:] * 100.0 / recorded[200])
    assert not np.array_equal(times, azure_times(2.0, 100.0, seed=1))


def test_turns_of_a_conversation_follow_each_other_with_recorded_pauses() -> None:
    online = conversations(1.0, 50.0, 4096, seed=0)
    later = online.follows != NO_REQUEST
    assert 0 < later.sum() < len(online)
    assert np.all(online.follows[later] == np.flatnonzero(later) - 1)
    assert np.all(online.arrival_s[later] > 1.0)
    assert np.all(online.input_tokens + online.output_tokens <= 4096)


def test_cut_lengths_fit() -> None:
    cut = lengths("arxiv_summaries").cut(2048)
    assert int((cut.inputs + cut.outputs).max()) <= 2048
    assert int(cut.inputs.min()) >= 1
    assert lengths("sharegpt_first").with_mean_output(1346).outputs.mean() == pytest.approx(1346, rel=0.01)


# ---- measurements ----


def test_waits_count_requests_that_the_end_cuts_off() -> None:
    prompts = Prompts.unrelated([100, 100])
    workload = make_workload([0.0, 1.0], prompts, [5, 100_000]).with_targets(1000, 50)
    engine = FCFS.engine(replace(echo.base_engine(), max_model_len=200_000))
    result = simulate(workload, engine, horizon_s=10.0)
    records = replace(
        result.records,
        first_token_s=np.array([0.5, np.nan]),
        last_token_s=np.array([2.0, np.nan]),
        max_itl_s=np.array([0.75, 0.0]),
    )
    changed = replace(result, records=records)
    assert longest_first_s(changed) == pytest.approx(result.end_s - 1.0, abs=0.1)
    assert longest_gap_s(changed) == 0.75
    stopped = replace(records, first_token_s=np.array([0.5, 1.5]), last_token_s=np.array([2.0, 4.0]))
    assert longest_gap_s(replace(result, records=stopped)) == pytest.approx(result.end_s - 4.0)


def test_strict_attainment_excuses_no_gap() -> None:
    workload = make_workload([0.0], Prompts.unrelated([10]), [400]).with_targets(1000, 1000)
    result = simulate(workload, FCFS.engine(echo.base_engine()))
    assert measure(result).strict_attainment == 1.0
    records = replace(result.records, max_itl_s=np.array([60.0]), num_itl_violations=np.array([1], np.int32))
    found = measure(replace(result, records=records))
    assert (found.attainment, found.strict_attainment) == (1.0, 0.0)


def test_measurement_of_offline_work_alone_has_no_online_numbers() -> None:
    workload = as_offline(make_workload([0.0], Prompts.unrelated([10]), [4]))
    found = measure(simulate(workload, FCFS.engine(echo.base_engine())))
    assert math.isnan(found.attainment)
    assert found.offline_tokens_per_s > 0
    assert not found.is_offline_left


# ---- the b/r solver's table ----


def test_solver_with_nothing_to_save_takes_what_fits() -> None:
    shape = model_shape("llama-2-13b")
    case = partial_caching.Case(10, 100, 0.55)
    memory = 0.55 * 1000 * shape.kv_bytes_per_token
    costs = partial_caching.step_costs(shape, "roofline", can_save=False)
    b, r, _ = partial_caching.algorithms.solve_partial_cache(costs, case.lengths(), memory, 1e9)
    assert (b, r) == (5, 0.0)


def test_solver_table_never_loses_against_r_0() -> None:
    table = partial_caching.solver_table(model_shape("llama-2-13b"))
    gains = [row[i] for row in table.rows for i in (5, 8)]
    assert len(gains) == 2 * len(partial_caching.CASES)
    assert all(isinstance(gain, float) and gain >= 1 - 1e-9 for gain in gains)
    assert max(gain for gain in gains if isinstance(gain, float)) > 1.2


def test_a_gain_is_that_of_runs_of_one_seed() -> None:
    def run(attained: float) -> Measurement:
        return replace(SOME_RUN, attainment=attained)

    ours, best = [run(0.8), run(0.9), run(0.7)], [run(0.7), run(0.8), run(0.6)]
    gain = paired(ours, best, lambda m: m.attainment)
    assert gain.mean == pytest.approx(0.1)
    assert gain.half_width == pytest.approx(0, abs=1e-9)
    assert math.isnan(paired(ours[:1], best[:1], lambda m: m.attainment).half_width)
    spread_out = paired([run(0.8), run(1.0)], [run(0.7), run(0.7)], lambda m: m.attainment)
    assert spread_out.half_width == pytest.approx(12.71 * 0.1)  # of two runs: t times half the distance
    weak = [run(0.1)] * 3
    cases = {"case": {"hocket": ours, "best": best, "weak": weak, "hocket, too": [run(1.0)] * 3}}
    table = gain_table("title", "hocket", cases, lambda m: m.attainment, is_share=True)
    assert table.rows[0][2] == "best"
    assert table.rows[0][4] == "+10.0 ± 0.0"
    assert table.rows[0][6] == pytest.approx(8.0)
    held = gain_table("t", "hocket", cases, lambda m: m.attainment, is_share=True, counts=lambda m: 0.0, least=0.5)
    assert held.rows[0][2] == "none"


def test_studies_draw_errors_that_the_profiles_state() -> None:
    for engine in (apt_serve.base_engine(), echo.base_engine(), ellm.base_engine(), mixed.base_engine()):
        assert engine.draw_errors
        assert np.mean(np.abs(np.array(engine.cost.error_ratios) - 1)) == pytest.approx(0.035, abs=0.01)
        assert engine.scheduler_config(1).refine_latency


SOME_RUN = Measurement(
    **{field.name: 0 for field in fields(Measurement)} | {"cost_model": "some", "is_offline_left": False}
)
