"""What coarser weights do is measured against float32 weights."""

from __future__ import annotations

from pathlib import Path

import torch

from bench.run.parts.quantization import Predictions, random_texts, rows
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
    exact, bfloat16, int8_weights, int8, int4 = rows("tiny", folder, random_texts(VOCAB_SIZE, count=1), is_text=False)
    names = [row[0].removeprefix("tiny, ") for row in (exact, bfloat16, int8_weights, int8, int4)]
    assert names == ["float32", "bfloat16", "int8-weights", "int8", "int4"]
    assert percent(exact[1]) == 0 < percent(bfloat16[1]) < percent(int8_weights[1]) < 40  # its weights are large
    assert percent(bfloat16[1]) < percent(int8[1]) < 40
    assert percent(int8[1]) < percent(int4[1]) < 150
