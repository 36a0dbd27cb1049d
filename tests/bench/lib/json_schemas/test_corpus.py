"""The cut of a collection of schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.lib.json_schemas.corpus import NoCorpusError, cut, find_corpus


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for category, number in (("Easy", 9), ("Hard", 2)):
        folder = tmp_path / "data" / category
        folder.mkdir(parents=True)
        for i in range(number):
            (folder / f"s{i}.json").write_text(json.dumps({"const": i}))
    return tmp_path


def test_a_cut_has_as_many_of_each_and_is_always_the_same(checkout: Path) -> None:
    data = find_corpus(checkout)
    assert find_corpus(checkout / "data") == data
    found = cut(data, 3)
    assert [schema.category for schema in found] == ["Easy"] * 3 + ["Hard"] * 2
    assert cut(data, 3) == found
    assert len(cut(data, 0)) == 11


def test_a_folder_without_schemas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCorpusError, match="CATEGORY"):
        find_corpus(tmp_path)
