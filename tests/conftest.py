"""Tests that need a CUDA device are skipped where there is none, however pytest was started."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("hocket", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("hocket")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    import torch  # only here: most tests of the gateway do without

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
