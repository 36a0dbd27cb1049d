"""One cluster's certificates for all tests of the fleet, and another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.fleet.certificates import make_certificates


@pytest.fixture(scope="session")
def cluster_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="session")
def foreign_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a cluster that is not ours."""
    folder = tmp_path_factory.mktemp("foreign")
    make_certificates(folder)
    return folder
