"""The study of cache forms: what is measured, against what, and what is said of it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from bench.lib.load.load_report import summarize
from bench.lib.load.slo import Attainment, Targets
from bench.lib.results import this_machine
from bench.lib.server.form_use import form_use, read_sample
from bench.run.cache_forms import (
    ALL_HIDDEN,
    BOTH,
    HEADER,
    KINDS,
    OFF,
    SETTINGS,
    Document,
    Measurement,
    _row,
    break_even,
    commands,
    describe,
    parse_arguments,
    plot,
    verdict,
)
from gateway.cli.options import add_options, engine_config
from schedcore.latency.latency_profile import ErrorStatistics, LatencyCoefficients, LatencyProfile, save_profile

PAGE = """
hocket_cache_tokens{{kind="kv"}} {kv}
hocket_cache_tokens{{kind="hidden"}} {hidden}
hocket_cache_tokens{{kind="uncached"}} 0.0
hocket_requests_running{{class="online"}} 2.0
hocket_requests_running{{class="offline"}} 1.0
hocket_preemptions_total {preemptions}
hocket_cache_conversions_total{{change="hidden_to_kv"}} 3.0
"""
SAMPLES = [
    read_sample(PAGE.format(kv=kv, hidden=hidden, preemptions=preemptions))
    for kv, hidden, preemptions in ((10.0, 0.0, 5.0), (100.0, 30.0, 6.0), (90.0, 50.0, 9.0))
]
# 10 ms per step, a tenth of a millisecond per projected and a millisecond per recomputed token
COSTS = LatencyCoefficients(step_base=0.01, hidden_token=1e-4, prefill_token=1e-3)
PROFILE = LatencyProfile(
    model="m",
    device="d",
    coefficients=COSTS,
    error=ErrorStatistics(mean=0.1, median=0.1, p95=0.1, num_samples=9),
)


def measurement(setting: str, attained: float, load: float = 0.5) -> Measurement:
    shares = Attainment(100, attained, attained, attained, 1.0)
    return Measurement(setting, load, shares, summarize([]), form_use(SAMPLES), 0.0)


def document(*measurements: Measurement) -> Document:
    return Document("", "2026-01-01", "", this_machine(), "m", 1.0, Targets(1.0, 1.0), PROFILE, list(measurements))


def test_a_run_is_known_by_its_samples() -> None:
    use = form_use(SAMPLES)
    assert use.num_tokens == {"kv": 100, "hidden": 50, "int8": 0, "uncached": 0}
    assert (use.num_all_tokens, use.num_running) == (140, 3)
    assert (use.num_preemptions, use.num_conversions) == (4, 0)


def test_what_one_more_request_is_worth_is_divided_by_what_a_token_costs() -> None:
    even = break_even(PROFILE, num_decodes=4, context=100)
    assert (even.num_decodes, even.context) == (4, 100)
    assert even.worth_seconds == pytest.approx(0.002)
    assert even.hidden_tokens == pytest.approx(20.0)
    assert even.uncached_tokens == pytest.approx(2.0)


def test_differences_within_the_noise_are_none() -> None:
    found = document(measurement(OFF, 0.60), measurement(KINDS, 0.63), measurement(BOTH, 0.90))
    lines = verdict(found, break_even(PROFILE, 1, 100))
    assert "kinds at load 0.5: +3.0 ± 6.9 points against off: no difference" in lines[0]
    assert "kinds and ratio at load 0.5: +30.0 ± 5.7 points against off: better" in lines[1]
    assert not any(ALL_HIDDEN in line for line in lines)


def test_every_setting_is_one_that_the_server_takes(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "p.json")
    parser = argparse.ArgumentParser()
    add_options(parser)
    arguments = parse_arguments(["--server-command", "hocket serve {model} --port {port}"])
    made = commands(tmp_path / "p.json", arguments)
    assert list(made) == list(SETTINGS)
    for command in made.values():
        options = vars(parser.parse_args(shlex.split(command.format(model="m", port=1))[2:]))
        assert not engine_config(options, Path("m"), "m").enable_prefix_caching


def test_the_table_and_the_plot_have_every_measurement(tmp_path: Path) -> None:
    found = document(measurement(OFF, 0.6, 0.4), measurement(OFF, 0.5, 0.7), measurement(KINDS, 0.6, 0.4))
    assert all(len(_row(m)) == len(HEADER) for m in found.measurements)
    page = describe(found, parse_arguments([]), break_even(PROFILE, 4, 224))
    assert page.count("\n| off ") == 2
    assert "a hidden-cached token costs 100.0 us per step" in page
    assert "One request more is worth 2.00 ms in every step" in page
    plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
