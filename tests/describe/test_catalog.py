"""The examples of catalog."""

from __future__ import annotations

from zenith_tune.describe.catalog import read_catalog


def test_the_catalog_of_clusters_has_gpus_and_nodes() -> None:
    assert sorted(read_catalog("clusters")) == ["gpus", "nodes"]
