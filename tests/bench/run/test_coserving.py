from __future__ import annotations

import json

from bench.lib.load.load_report import summarize
from bench.lib.load.slo import Attainment
from bench.lib.server.offline_batch import OfflineProgress, SharedDocuments
from bench.run.coserving import Measurement, verdict, while_at_work


def measurement(setting: str, attained: float, rows_per_second: float) -> Measurement:
    return Measurement(
        setting=setting,
        has_offline=rows_per_second > 0,
        command="",
        online=summarize([]),
        attainment=Attainment(100, attained, attained, attained, 1.0),
        rows_per_second=rows_per_second,
        prompt_tokens_per_second=0.0,
        output_tokens_per_second=0.0,
        cached_ratio=0.0,
        noise_ratio=0.0,
    )


def test_bs_is_compared_where_it_attains_as_much() -> None:
    lines = verdict(
        [
            measurement("online alone", 0.995, 0.0),
            measurement("hocket", 0.985, 30.0),
            measurement("bs, 1 rows", 0.99, 5.0),
            measurement("bs, 4 rows", 0.98, 15.0),
            measurement("bs, 64 rows", 0.60, 40.0),
        ]
    )
    assert "98.5%: 1.0 points less" in lines[0]
    assert "30.0 rows/s, 2.00 x" in lines[1]
    assert "bs, 4 rows: 15.0 rows/s" in lines[1]


def test_bs_that_never_attains_as_much_is_said_so() -> None:
    lines = verdict(
        [measurement("online alone", 1.0, 0.0), measurement("hocket", 0.99, 30.0), measurement("bs", 0.5, 40.0)]
    )
    assert "No setting of bs attains as much" in lines[1]


def test_throughput_counts_until_the_batch_is_done() -> None:
    samples = [OfflineProgress(float(at), num_rows, 0, 0, 0) for at, num_rows in enumerate([0, 10, 20, 20, 20])]
    assert while_at_work(samples).at == 2.0


def test_rows_share_their_documents_and_nothing_else() -> None:
    rows = SharedDocuments(40, 4, 30, 10, 5, vocab_size=1000)
    prompts = [json.loads(line)["body"]["prompt"] for line in rows.lines("model")]
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 4
    assert len({tuple(prompt[30:]) for prompt in prompts}) == 40
    assert list(rows.lines("model")) == list(rows.lines("model"))
