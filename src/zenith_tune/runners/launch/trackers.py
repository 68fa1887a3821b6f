"""The environment of a trial: its script's experiment trackers are off, unless the user has set them."""

from __future__ import annotations

from collections.abc import Mapping

TRACKERS_OFF = {"WANDB_MODE": "disabled", "SWANLAB_MODE": "disabled"}
"""Variables by which trackers make no run; MLflow and TensorBoard have none."""


def without_trackers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which trackers make no run, where it does not say otherwise."""
    return {**TRACKERS_OFF, **environment}
