"""`hocket plan`, from its command line to what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cli.main import main
from schedcore.latency.latency_profile import save_profile, shipped_profiles

MOONCAKE = str(Path(__file__).parents[2] / "data" / "mooncake_conversation_cut.csv")
TARGETS = ("--ttft-ms", "1000", "--itl-ms", "100")


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    status = main(["plan", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, out, err = plan(capsys, *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two minutes at 5 requests/s, in the middle of them 20 s at 20."""
    rng = np.random.default_rng(0)
    times = np.sort(np.concatenate([rng.uniform(0, 120, 600), rng.uniform(50, 70, 300)]))
    path = tmp_path_factory.mktemp("traces") / "busy.csv"
    rows = [f"{time:.3f},{rng.integers(200, 2000)},{rng.integers(5, 80)}" for time in times]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    return str(path)


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "bulk.csv"
    path.write_text("input_tokens,output_tokens\n" + "\n".join(f"{300 + 7 * i},20" for i in range(40)))
    return str(path)


def test_tables_say_what_was_tried_what_is_least_and_what_it_leaves_to_offline_work(
    capsys: pytest.CaptureFixture[str], busy: str, bulk: str
) -> None:
    arguments = ("--trace", busy, "--offline", bulk, *TARGETS, "--gpu", "a100", "--window-s", "20")
    status, out, err = plan(capsys, *arguments)
    text = " ".join(out.split())
    assert status == 0, err
    assert "Simulated, not measured: llama-3-8b" in text
    assert "meta-llama-3-8b_a100_tp1" in text
    assert "Peak of busy: 0:00:" in text
    assert "A100 40G" in text
    assert "Least resources: " in text
    assert "GPU-hours a day" in text
    assert "Offline (bulk): " in text
    assert "per engine" in text


def test_the_plan_as_json(capsys: pytest.CaptureFixture[str], busy: str, bulk: str) -> None:
    arguments = ["--trace", busy, *TARGETS, "--gpu", "a100", "--memory", "40G", "--num-gpus", "1", "--window-s", "20"]
    found = planned(capsys, *arguments, "--offline", bulk, "--policy", "priority", "--max-num-batched-tokens", "512")
    trials = {trial["num_engines"]: trial for trial in found["peak"]["trials"]}
    least = found["peak"]["least"]
    assert found["is_simulated"] is True
    assert found["policy"] == "priority"
    assert least["num_engines"] > 1
    assert least["attainment"]["slo_ratio"] >= 0.9
    assert not trials[least["num_engines"] - 1]["is_enough"]
    assert 45 < found["peak"]["window"]["start_s"] < 55
    day = found["day"]
    assert day["num_engines"] == least["num_engines"]
    assert day["offline_requests_per_hour"] > 0
    assert found["gpu_hours"] == pytest.approx(least["num_gpus"] * day["duration_s"] / 3600)


def test_a_tpot_target_alone_can_be_planned_for(capsys: pytest.CaptureFixture[str], busy: str) -> None:
    arguments = ("--trace", busy, "--gpu", "a100", "--num-gpus", "1", "--window-s", "20")
    found = planned(capsys, *arguments, "--tpot-ms", "100")
    assert found["tpot_target_ms"] == 100
    assert found["peak"]["least"]["attainment"]["tpot_ratio"] >= 0.9
    assert found["day"]["tpot_attainment_ratio"] > 0
    status, _, err = plan(capsys, *arguments)
    assert status == 1
    assert "TPOT" in err


def test_a_trace_without_times_has_no_peak(capsys: pytest.CaptureFixture[str], bulk: str) -> None:
    status, _, err = plan(capsys, "--trace", bulk, *TARGETS)
    assert status == 1
    assert "bulk has no arrival times" in err


def test_the_same_command_gives_the_same_bytes(capsys: pytest.CaptureFixture[str], busy: str, bulk: str) -> None:
    arguments = ("--trace", busy, "--offline", bulk, *TARGETS, "--gpu", "a100", "--window-s", "20", "--json")
    assert plan(capsys, *arguments) == plan(capsys, *arguments, "--threads", "1")


def test_stricter_attainment_never_needs_less(capsys: pytest.CaptureFixture[str], busy: str) -> None:
    arguments = ("--trace", busy, *TARGETS, "--gpu", "a100", "--num-gpus", "1", "--window-s", "20", "--peak-only")
    sizes = [planned(capsys, *arguments, "--attainment", a)["peak"]["least"]["num_gpus"] for a in ("0.5", "0.9", "1")]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_price_changes_which_gpu_is_least(capsys: pytest.CaptureFixture[str], busy: str) -> None:
    arguments = ("--trace", busy, *TARGETS, "--num-gpus", "1", "--window-s", "20", "--peak-only")
    assert planned(capsys, *arguments)["peak"]["least"]["hardware"].startswith("H100")
    dear = planned(capsys, *arguments, "--price", "h100=50", "--price", "A100=1")
    assert dear["peak"]["least"]["hardware"].startswith("A100")
    assert dear["peak"]["least"]["cost"] == dear["peak"]["least"]["num_gpus"]


def test_a_profile_of_ones_own_is_planned_with(capsys: pytest.CaptureFixture[str], tmp_path: Path, busy: str) -> None:
    path = tmp_path / "mine.json"
    save_profile(shipped_profiles()["meta-llama-3-8b_a100_tp1"], path)
    arguments = ["--trace", busy, *TARGETS, "--window-s", "20", "--peak-only"]
    mine = planned(capsys, *arguments, "--gpu", str(path), "--memory", "40G")["peak"]["least"]
    shipped = planned(capsys, *arguments, "--gpu", "a100", "--memory", "40G", "--num-gpus", "1")["peak"]["least"]
    assert mine["hardware"] == "mine.json 40G"
    assert (mine["num_engines"], mine["attainment"]) == (shipped["num_engines"], shipped["attainment"])


def test_a_day_without_offline_work_is_online_only(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = plan(capsys, "--trace", MOONCAKE, "--jitter-s", "3", *TARGETS, "--model", "llama-3.1-8b")
    assert status == 0, err
    assert "Online: 28 requests" in " ".join(out.split())
    assert "Offline" not in out


def test_a_plot_of_the_day(capsys: pytest.CaptureFixture[str], tmp_path: Path, busy: str, bulk: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "day.svg"
    arguments = ("--trace", busy, "--offline", bulk, *TARGETS, "--gpu", "h100", "--plot", str(path))
    assert plan(capsys, *arguments)[0] == 0
    drawn = path.read_text()
    assert plan(capsys, *arguments)[0] == 0
    assert "<svg" in drawn
    assert path.read_text() == drawn


def test_targets_that_nothing_holds_are_said_with_advice(capsys: pytest.CaptureFixture[str], busy: str) -> None:
    arguments = ["--trace", busy, "--gpu", "a100", "--num-gpus", "1", "--window-s", "20"]
    status, out, err = plan(capsys, *arguments, "--ttft-ms", "2")
    assert status == 1
    assert "too slow in any number" in " ".join(out.split())
    assert "no hardware can hold the targets" in err
    status, _, err = plan(capsys, *arguments, "--ttft-ms", "500", "--itl-ms", "30", "--max-gpus", "1", "--json")
    assert status == 1
    assert "--max-gpus" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "no/such/file.csv", *TARGETS], "no/such/file.csv"),
        (["--trace", MOONCAKE], "TTFT, ITL or TPOT"),
        (["--trace", MOONCAKE, *TARGETS, "--gpu", "tpu"], "known: A100, H100"),
        (["--trace", MOONCAKE, *TARGETS, "--num-gpus", "3"], "engines may have 1, 4, 8 GPUs"),
        (["--trace", MOONCAKE, *TARGETS, "--attainment", "2"], "attainment"),
        (["--trace", MOONCAKE, *TARGETS, "--policy", "nonsense"], "policy"),
        (["--trace", MOONCAKE, *TARGETS, "--policy", "fcfs:no_such=1"], "no_such=1"),
        (["--trace", MOONCAKE, *TARGETS, "--price", "tpu=1"], "tpu"),
        (["--trace", MOONCAKE, *TARGETS, "--plot", "day.txt"], "svg"),
        (["--trace", MOONCAKE, *TARGETS, "--offline", "missing.csv"], "missing.csv"),
        (["--trace", MOONCAKE, *TARGETS, "--gpu", "mine.json"], "memory"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, out, err = plan(capsys, *arguments)
    assert status == 1
    assert not out
    *_, last = err.strip().splitlines()
    assert last.startswith("hocket plan: ")
    assert message in last


@pytest.mark.parametrize(
    "option", [["--ttft-ms", "-1"], ["--price", "a100"], ["--policy", "fcfs:broken"], ["--window-s", "nan"]]
)
def test_values_that_are_no_values_are_refused_by_the_parser(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--trace", MOONCAKE, *option])
    assert caught.value.code == 2
    assert option[0] in capsys.readouterr().err
