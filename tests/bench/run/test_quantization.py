"""What coarser weights do is measured against float32 weights."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.run.parts.quantization import Predictions, predict, random_texts, rows, with_outliers
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint


def percent(text: str) -> float:
    return float(text.removesuffix("%"))


def test_predictions_equal_themselves() -> None:
    logits = torch.randn(20, 50)
    predictions = Predictions(logits, logits.argmax(-1))
    assert predictions.row("m", predictions, is_text=False) == ["m", "0.00%", "0.00e+00", "100.0%", ""]


def test_perplexity_of_even_odds_is_their_number() -> None:
    even = Predictions(torch.zeros(9, 50), torch.arange(9))
    assert even.row("m", even, is_text=True)[-1] == "50.0000"


def test_fewer_bits_err_more(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    table = list(rows("tiny", folder, random_texts(VOCAB_SIZE, count=1), is_text=False))
    exact, bfloat16, int8_weights, int8, int4, bfloat16_cache, int8_cache = table
    names = [row[0].removeprefix("tiny, ") for row in table]
    assert names == ["float32", "bfloat16", "int8-weights", "int8", "int4", "cache in bfloat16", "cache in int8"]
    assert 0 < percent(bfloat16_cache[1]) < percent(int8_cache[1]) < 20
    assert percent(exact[1]) == 0 < percent(bfloat16[1]) < percent(int8_weights[1]) < 40  # its weights are large
    assert percent(bfloat16[1]) < percent(int8[1]) < 40
    assert percent(int8[1]) < percent(int4[1]) < 150


def test_outliers_change_nothing_where_nothing_is_rounded(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny")
    texts = random_texts(VOCAB_SIZE, count=1)
    same = predict(with_outliers(folder, tmp_path / "outliers"), "float32", None, texts).logits
    expected = predict(folder, "float32", None, texts).logits
    torch.testing.assert_close(same, expected, rtol=1e-3, atol=1e-3)
