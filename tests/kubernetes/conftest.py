"""The cluster of stand-ins that tests share, and one of its own for those that break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.real_cluster import RealCluster
from tests.kubernetes.standin_cluster import StandInCluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInCluster]:
    cluster = StandInCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    cluster = RealCluster(tmp_path_factory.mktemp("real"))
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandInCluster]:
    cluster = StandInCluster(tmp_path)
    yield cluster
    cluster.close()
