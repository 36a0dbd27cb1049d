"""docs/metrics.md says of every metric what the catalogue says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gateway.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metrics_page", ROOT / "tools/metrics_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_catalogue_gives(tool: ModuleType) -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert tool.filled(page) == page, "make docs"


def test_a_page_without_marks_is_left_alone(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="marks"):
        tool.filled("# Metrics\n")


def test_every_metric_is_declared_once() -> None:
    names = [family.name for chapter in CATALOGUE for family in chapter.families]
    assert sorted(names) == sorted(set(names))
