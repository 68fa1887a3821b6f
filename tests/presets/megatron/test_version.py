"""The examples of version."""

from __future__ import annotations

from zenith_tune.presets.megatron.version import VersionFeatures


def test_an_unknown_version_counts_as_the_newest() -> None:
    assert VersionFeatures(None).release == (0, 20)
