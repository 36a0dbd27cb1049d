"""A step whose indices lie outside of what there is gets a ValueError at the door, and never reads foreign memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from worker import ops
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.models.decoder_weights import decoder_weights
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.ops.checks import check_batch, check_pool

BLOCK_SIZE, MAX_BLOCKS, NUM_ROWS, MAX_POSITIONS = 4, 8, 3, 24
MAX_TOKENS = BLOCK_SIZE * MAX_BLOCKS


class Step(NamedTuple):
    """Two sequences: five tokens from the start, and the seventh token of another."""

    token_ids: Any = (1, 2, 3, 4, 5, 6)
    positions: Any = (0, 1, 2, 3, 4, 6)
    token_row: Any = (0, 0, 0, 0, 0, 2)
    query_start: Any = (0, 5, 6)
    seq_lens: Any = (5, 7)
    rows: Any = (0, 2)
    sample_seqs: Any = (0, 1)

    def arrays(self) -> Step:
        return Step(*(np.array(values, np.int32) for values in self))


WRONG: list[dict[str, Any]] = [
    {"positions": (0, 1, 2, 3, 4, MAX_TOKENS)},
    {"positions": (0, 1, 2, 3, 4, -1)},
    {"token_row": (0, 0, 0, 0, 0, NUM_ROWS)},
    {"token_row": (0, 0, -2, 0, 0, 2)},
    {"rows": (0, NUM_ROWS)},
    {"rows": (-1, 2)},
    {"seq_lens": (5, MAX_TOKENS + 1)},
    {"seq_lens": (4, 7)},
    {"seq_lens": (-5, 7)},
    {"query_start": (0, 5, 7)},
    {"query_start": (1, 5, 6)},
    {"query_start": (0, 7, 6)},
    {"query_start": (0, -5, 6)},
]
WRONG_FOR_THE_DECODER: list[dict[str, Any]] = [
    {"token_ids": (1, 2, 3, 4, 5, VOCAB_SIZE)},
    {"token_ids": (1, -2, 3, 4, 5, 6)},
    {"positions": (0, 1, 2, 3, 4, MAX_POSITIONS)},
    {"sample_seqs": (0, 2)},
    {"sample_seqs": (-1, 1)},
    {"positions": (0, 1, 2)},
    {"seq_lens": (5,)},
    {"query_start": (0, 6)},
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_checkpoint(tmp_path_factory.mktemp("llama"))
    model, _ = load_model(folder, read_model_config(folder), max_positions=MAX_POSITIONS)
    return decoder_weights(model)


def make_pool(num_units: int = 64) -> PagedPool:
    table = torch.arange(NUM_ROWS * 3 * 2 * MAX_BLOCKS, dtype=torch.int32).view(NUM_ROWS, 3, 2, MAX_BLOCKS) % 64
    return PagedPool(torch.zeros(num_units, 1, BLOCK_SIZE, 32), table, 2, 16)


def batch_of(step: Step) -> StepBatch:
    tensors = {name: torch.from_numpy(array) for name, array in step._asdict().items() if name != "sample_seqs"}
    return StepBatch(**tensors, sample_tokens=torch.tensor([4, 5]), max_query_len=5, max_seq_len=7)


def test_a_step_within_bounds_is_computed(weights: Any) -> None:
    step = Step().arrays()
    decoder = ops.make_decoder_step(weights, make_pool(), 2)
    tokens: npt.NDArray[np.int32] = decoder.greedy_tokens(step)
    assert ((tokens >= 0) & (tokens < VOCAB_SIZE)).all()
    assert check_batch(batch_of(step), make_pool()) == (6, 2)


@pytest.mark.parametrize("wrong", WRONG + WRONG_FOR_THE_DECODER, ids=str)
def test_the_native_step_refuses_what_lies_outside(weights: Any, wrong: dict[str, Any]) -> None:
    decoder = ops.make_decoder_step(weights, make_pool(), 2)
    with pytest.raises(ValueError, match=r"must|differ"):
        decoder.greedy_tokens(Step(**wrong).arrays())


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_operations_one_by_one_refuse_it_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        check_batch(batch_of(Step(**wrong).arrays()), make_pool())


def test_a_batch_longer_than_it_says_is_refused() -> None:
    with pytest.raises(ValueError, match="max_seq_len and max_query_len"):
        check_batch(batch_of(Step(seq_lens=(5, 8)).arrays()), make_pool())


@pytest.mark.parametrize("shape", [(0, 1, 4, 32), (8, 0, 4, 32), (8, 1, 0, 32)])
def test_a_pool_without_room_is_refused(shape: tuple[int, ...]) -> None:
    table = torch.zeros(NUM_ROWS, 3, 2, MAX_BLOCKS, dtype=torch.int32)
    with pytest.raises(ValueError, match="room for nothing"):
        check_pool(PagedPool(torch.zeros(shape), table, 2, 16))
