"""What a decode step reads, by the checkpoint's header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench.lib.model.weight_bytes import multiplied_weights, streamed_weight_bytes

EMBEDDING, LAYER, HEAD = "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"


@pytest.mark.parametrize(("names", "expected"), [((EMBEDDING, LAYER, HEAD), 48), ((EMBEDDING, LAYER), 48)])
def test_embeddings_count_only_where_they_are_the_output_too(
    tmp_path: Path, names: tuple[str, ...], expected: int
) -> None:
    save_file({name: np.zeros((3, 4), np.float16) for name in names}, tmp_path / "model.safetensors")
    assert streamed_weight_bytes(tmp_path) == expected


def test_all_files_of_a_checkpoint_count(tmp_path: Path) -> None:
    for i, name in enumerate((LAYER, HEAD)):
        save_file({name: np.zeros(5, np.float32)}, tmp_path / f"model-{i}.safetensors")
    assert streamed_weight_bytes(tmp_path) == 40


@pytest.mark.parametrize(("names", "expected"), [((EMBEDDING, LAYER, HEAD), (12, 12)), ((EMBEDDING, LAYER), (12, 12))])
def test_a_tied_head_is_multiplied_as_its_own_would_be(
    tmp_path: Path, names: tuple[str, ...], expected: tuple[int, int]
) -> None:
    tensors = {name: np.zeros((3, 4), np.float16) for name in names}
    save_file(tensors | {"model.norm.weight": np.zeros(4, np.float16)}, tmp_path / "model.safetensors")
    assert multiplied_weights(tmp_path) == expected
