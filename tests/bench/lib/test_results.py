"""Tables and ratios of the server benchmark."""

from __future__ import annotations

import msgspec
import pytest

from bench.lib.load.load_report import Distribution, LoadReport
from bench.lib.results import Cell, ModelResult, ProductLimit, ReadLimit, ServerFacts, describe, ratio_rows
from bench.lib.server.step_time import StepTime
from bench.lib.table import render


def cell(server: str, concurrency: int, speed: float, ttft_ms: float = 10.0, errors: int = 0) -> Cell:
    latency = Distribution(ttft_ms, ttft_ms, ttft_ms, ttft_ms, ttft_ms)
    report = LoadReport(
        8, errors, {"boom": errors} if errors else {}, 1.0, 100, speed, 1.0, 1.0, 5.0, latency, latency, None, latency
    )
    return Cell(server, concurrency, report, StepTime(10, 1.0, 0.01) if server == "ours" else None, 0.02)


def model_result(cells: list[Cell]) -> ModelResult:
    names = dict.fromkeys(cell.server for cell in cells)
    servers = [ServerFacts(name, f"serve {name}", 2.5, 400_000_000, 500_000_000) for name in names]
    return ModelResult("tiny", 128, 64, ReadLimit(80e9, 200_000_000), servers, cells)


def test_repeated_cells_are_shown_by_their_median() -> None:
    result = model_result([cell("ours", c, speed) for c in (1, 8) for speed in (30.0 * c, 10.0 * c, 20.0 * c)])
    shown = [(cell.concurrency, cell.report.output_tokens_per_second) for cell in result.median_cells()]
    assert shown == [(1, 20.0), (8, 160.0)]


def test_ratios_say_how_many_times_better_we_are() -> None:
    cells = [cell("ours", 1, 300.0, ttft_ms=5.0), cell("peer", 1, 200.0, ttft_ms=20.0)]
    assert ratio_rows(cells, "ours", "peer") == [["ours vs peer", "1", "1.50x", "4.00x", "4.00x"]]


def test_ratio_to_a_peer_that_failed_is_left_out() -> None:
    cells = [cell("ours", 1, 300.0), cell("peer", 1, 0.0)]
    assert ratio_rows(cells, "ours", "peer")[0][2] == "-"


def test_description_has_a_row_per_cell_and_names_errors() -> None:
    text = describe(model_result([cell("ours", 1, 300.0), cell("peer", 1, 200.0, errors=2)]))
    rows = [[column.strip() for column in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert ["ours", "1", "300", "10.0", "10.0", "10.0", "10.0", "-", "1000.0", "1.00%", "2%", "0"] in rows
    assert ["peer", "1", "200", "10.0", "10.0", "10.0", "10.0", "-", "-", "-", "2%", "2"] in rows
    assert "started in 2.5 s, resident memory 400 MB idle, 500 MB after the load" in text
    assert "error: boom" in text
    assert "limit at c=1: 80.0 GB/s over 200 MB of weights = 400 tokens/s" in text
    assert "ours: 75% of it" in text


def test_products_limit_many_requests_and_memory_limits_few() -> None:
    read = ReadLimit(100e9, 100_000_000)  # 1 ms a step
    products = ProductLimit(1e12, 40_000_000, 10_000_000)  # 0.1 ms a token, 0.08 of a prompt's, 0.02 the head
    assert products.tokens_per_second(1, 10, 101, read) == pytest.approx(101 / (0.82e-3 + 100 * 1e-3))
    assert products.tokens_per_second(64, 10, 101, read) == pytest.approx(101 / (0.82e-3 + 100 * 0.1e-3))


def test_description_says_what_of_the_limit_each_cell_reaches() -> None:
    result = model_result([cell("ours", 1, 95.0), cell("ours", 8, 160.0)])
    assert "limit of products" not in describe(result)
    limited = msgspec.structs.replace(result, products=ProductLimit(1e12, 1_000_000, 0), limit=ReadLimit(1e9, 10**7))
    rows = [[column.strip() for column in line.strip("|").split("|")] for line in describe(limited).splitlines()]
    assert ["ours", "1", "102", "94%"] in rows
    assert ["ours", "8", "810", "20%"] in rows


def test_results_survive_json() -> None:
    result = msgspec.structs.replace(model_result([cell("ours", 1, 300.0)]), products=ProductLimit(1e12, 8, 2))
    assert msgspec.json.decode(msgspec.json.encode(result), type=ModelResult) == result


def test_narrowest_column_still_has_a_valid_rule() -> None:
    assert render(("name", "c"), [("a", "1")]).splitlines()[1] == "| ---- | -: |"


def test_table_columns_are_aligned() -> None:
    assert render(("name", "n"), [("a", "1"), ("bb", "1000")]).splitlines() == [
        "| name |    n |",
        "| ---- | ---: |",
        "| a    |    1 |",
        "| bb   | 1000 |",
    ]
