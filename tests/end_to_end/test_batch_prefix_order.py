"""Rows over shared documents in random order reuse the cache as if they had come document by document."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import openai

from fakes.batch_client import results, row, submit, wait_until_ended
from fakes.served import serving

NUM_DOCUMENTS = 20
ROWS_PER_DOCUMENT = 12
WORDS = ("river", "stone", "bird", "house", "green", "small", "old", "walks", "sings", "under", "over", "light")


def hit_rate(client: openai.OpenAI, rows: list[dict[str, Any]]) -> float:
    batch = wait_until_ended(client, submit(client, rows))
    usages = [line["response"]["body"]["usage"] for line in results(client, batch.output_file_id)]
    num_cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(num_cached / sum(usage["prompt_tokens"] for usage in usages))


def test_random_order_hits_like_perfect_order(tmp_path: Path) -> None:
    rng = random.Random(3)
    documents = [" ".join(rng.choices(WORDS, k=200)) for _ in range(NUM_DOCUMENTS)]
    in_order = [
        row(f"{d}-{i}", {"prompt": f"{document} Question {i}: why?", "max_tokens": 4, "ignore_eos": True})
        for d, document in enumerate(documents)
        for i in range(ROWS_PER_DOCUMENT)
    ]
    shuffled = rng.sample(in_order, len(in_order))
    rates = []
    for rows, option in ((in_order, "--no-prefix-order"), (shuffled, "--prefix-order")):
        folder = tmp_path / option
        folder.mkdir()
        # Room for a quarter of the documents, and a look-ahead that sees a part of the rows.
        with (
            serving(folder, "--kv-cache-memory-bytes", "2M", "--look-ahead-rows", "64", option) as server,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ):
            rates.append(hit_rate(client, rows))
    assert rates[0] > 0.8
    assert rates[1] >= 0.9 * rates[0]
