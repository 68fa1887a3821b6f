"""The examples of space."""

from __future__ import annotations

from zenith_tune.describe.deepspeed_config import DsConfig
from zenith_tune.presets.deepspeed.space import listed_axes


def test_lists_in_the_json_are_axes() -> None:
    config = DsConfig(values={"zero_optimization": {"overlap_comm": [True, False]}, "optimizer": {"betas": [0, 1]}})
    assert listed_axes(config)["overlap_comm"].choices == (True, False)
