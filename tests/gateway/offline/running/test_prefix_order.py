from __future__ import annotations

import itertools
import json
import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.offline.running.prefix_order import order_by_prefix, prefix_key


def chat(text: str) -> bytes:
    return json.dumps({"model": "demo", "messages": [{"role": "user", "content": text}]}).encode()


def completion(prompt: object) -> bytes:
    return json.dumps({"model": "demo", "max_tokens": 5, "prompt": prompt}).encode()


def num_switches(groups: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(groups))


def test_rows_over_shared_documents_come_document_by_document() -> None:
    rng = random.Random(1)
    documents = ["".join(rng.choices("abcdefgh ", k=1500)) for _ in range(20)]
    of_row = [i % 20 for i in range(400)]
    rng.shuffle(of_row)
    keys = {i: prefix_key(chat(f"{documents[group]} Question {i}?")) for i, group in enumerate(of_row)}
    assert num_switches([of_row[index] for index in order_by_prefix(keys)]) == 19


def test_documents_behind_a_common_system_prompt_are_told_apart() -> None:
    rng = random.Random(2)
    system = "You are helpful. " * 40
    documents = ["".join(rng.choices("abcdefgh ", k=2000)) for _ in range(5)]
    of_row = [i % 5 for i in range(100)]
    keys = {i: prefix_key(chat(system + documents[group] + str(i))) for i, group in enumerate(of_row)}
    assert num_switches([of_row[index] for index in order_by_prefix(keys)]) == 4


def test_token_ids_are_prompts_too() -> None:
    a, b = [1, 2, 3] * 100, [4, 5, 6] * 100
    keys = {i: prefix_key(completion([*(a if i % 2 else b), i])) for i in range(10)}
    order = order_by_prefix(keys)
    assert num_switches([index % 2 for index in order]) == 1


def test_unrelated_short_rows_stay_in_order() -> None:
    keys = {i: prefix_key(completion(f"row {i}")) for i in range(50)}
    assert order_by_prefix(keys) == list(range(50))


@given(bodies=st.lists(st.binary(max_size=300), max_size=20))
def test_every_row_comes_once_whatever_its_body(bodies: list[bytes]) -> None:
    keys = {i: prefix_key(body) for i, body in enumerate(bodies)}
    assert sorted(order_by_prefix(keys)) == list(range(len(bodies)))
    assert len({len(key) for key in keys.values()}) <= 1
