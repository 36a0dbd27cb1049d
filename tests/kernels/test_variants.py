"""That no variant of the kernels goes untested because it was not built."""

from __future__ import annotations

import pytest

from fakes.kernel_device import has_isa


def test_the_16_lane_code_runs_where_there_is_avx2() -> None:
    if not has_isa("avx2"):
        pytest.skip("needs AVX2")
    assert has_isa("avx2_w16"), "built without the tests' kernels: run make .venv/.dev"
