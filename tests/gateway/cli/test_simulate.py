"""`hocket simulate`, from its command line to what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main

MOONCAKE = str(Path(__file__).parents[2] / "data" / "mooncake_conversation_cut.csv")


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    status = main(["simulate", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def reports(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, out, err = simulate(capsys, *arguments, "--json")
    assert status == 0, err
    return json.loads(out)


def test_a_table_says_that_its_numbers_are_simulated_and_by_which_cost_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--trace", MOONCAKE, "--jitter-s", "3", "--ttft-ms", "1000", "--itl-ms", "200")
    status, out, err = simulate(capsys, *arguments)
    text = " ".join(out.split())
    assert status == 0, err
    assert "Simulated, not measured: llama-3-8b, cost model meta-llama-3-8b_a100_tp1" in text
    assert "online, " in text
    assert "SLO attainment" in text


def test_policies_are_compared_on_the_same_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    whole = "fcfs:enable_chunked_prefill=false,max_num_batched_tokens=8192"
    arguments = ["--lengths", "400:40", "--arrivals", "gamma:5:cv3", "--num-requests", "60", "--ttft-ms", "500"]
    found = reports(capsys, *arguments, "--policy", "fcfs", "--policy", "priority", "--policy", whole)
    assert list(found) == ["fcfs", "priority", whole]
    chunked, priority, unchunked = found.values()
    assert chunked["classes"] == priority["classes"]  # all are equally important
    assert chunked["classes"] != unchunked["classes"]
    assert {report["classes"][0]["num_finished"] for report in found.values()} == {60}


def test_a_tpot_target_is_one_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lengths", "400:40", "--arrivals", "poisson:5", "--num-requests", "20", "--ttft-ms", "200"]
    for tpot_ms, attained in (("0.01", 0.0), ("5000", 1.0)):
        (found,) = reports(capsys, *arguments, "--tpot-ms", tpot_ms).values()
        online = found["classes"][0]
        assert (online["ttft_attainment_ratio"], online["itl_attainment_ratio"]) == (1.0, None)
        assert online["tpot_attainment_ratio"] == online["slo_attainment_ratio"] == attained


def test_a_seed_gives_the_same_bytes_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lengths", MOONCAKE, "--arrivals", "poisson:2", "--num-requests", "30", "--json"]
    once, again, other = (simulate(capsys, *arguments, "--seed", seed) for seed in ("1", "1", "2"))
    assert once == again
    assert once[1] != other[1]


def test_errors_of_step_times_are_drawn_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--lengths", "64:16", "--arrivals", "poisson:8", "--num-requests", "40", "--json")
    plain, drawn, again = (simulate(capsys, *arguments, *more) for more in ((), ("--step-errors",), ("--step-errors",)))
    assert plain[0] == drawn[0] == 0
    assert plain[1] != drawn[1] == again[1]


def test_offline_work_waits_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lengths", "100:10", "--arrivals", "poisson:5", "--num-requests", "20", "--ttft-ms", "500"]
    found = reports(capsys, *arguments, "--offline", MOONCAKE)["hocket"]
    assert [c["request_class"] for c in found["classes"]] == ["online", "offline"]
    assert found["classes"][1]["slo_attainment_ratio"] is None


def test_under_policy_priority_online_requests_go_before_offline_work(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lengths", "100:10", "--arrivals", "poisson:5", "--num-requests", "20", "--max-num-seqs", "2"]
    found = reports(capsys, *arguments, "--offline", MOONCAKE, "--policy", "fcfs", "--policy", "priority")
    ttft = {policy: report["classes"][0]["ttft_ms"]["p99"] for policy, report in found.items()}
    assert ttft["priority"] < ttft["fcfs"] / 2


def test_sessions_with_arrivals_of_their_own_find_their_history_cached(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", MOONCAKE, "--arrivals", "poisson:1", "--think-s", "1", "--max-model-len", "16384"]
    with_cache = reports(capsys, *arguments)["hocket"]["classes"][0]
    without = reports(capsys, *arguments, "--no-enable-prefix-caching")["hocket"]["classes"][0]
    assert with_cache["cached_prompt_ratio"] > 0.3
    assert without["cached_prompt_ratio"] == 0


def test_requests_that_exceed_the_context_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = simulate(capsys, "--trace", MOONCAKE, "--model", "opt-13b", "--memory", "40G", "--json")
    assert status == 0
    assert "exceed the context of 2048 tokens" in err
    assert json.loads(out)["hocket"]["classes"][0]["num_refused"] == 0


def test_a_plot_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    assert simulate(capsys, "--trace", MOONCAKE, "--plot", str(path))[0] == 0
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --trace or --lengths"),
        (["--trace", "a.csv", "--lengths", "1:1"], "either --trace or --lengths"),
        (["--trace", "no/such/file.csv"], "no/such/file.csv"),
        (["--lengths", "10:10"], "needs --arrivals"),
        (["--lengths", "0:10", "--arrivals", "poisson:1"], "at least one"),
        (["--lengths", "10:10", "--arrivals", "poisson:1", "--policy", "nonsense"], "policy"),
        (["--lengths", "10:10", "--arrivals", "poisson:1", "--policy", "fcfs:no_such=1"], "no_such=1"),
        (["--lengths", "10:10", "--arrivals", "poisson:1", "--gpu", "tpu"], "latency profile"),
        (["--lengths", "10:10", "--arrivals", "poisson:1", "--memory", "10G"], "weights"),
        (["--lengths", "10:10", "--arrivals", "poisson:1", "--plot", "out.txt"], "svg"),
        (["--trace", MOONCAKE, "--max-model-len", "10"], "fits the context"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, out, err = simulate(capsys, *arguments)
    assert status == 1
    assert not out
    *_, last = err.strip().splitlines()
    assert last.startswith("hocket simulate: ")
    assert message in last


@pytest.mark.parametrize("option", [["--arrivals", "often"], ["--policy", "fcfs:broken"], ["--num-requests", "0"]])
def test_values_that_are_no_values_are_refused_by_the_parser(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "--lengths", "1:1", *option])
    assert caught.value.code == 2
    assert option[0] in capsys.readouterr().err
