"""What a test may need beyond Python: missing means a skip with its reason, or a failure where CI requires it."""

from __future__ import annotations

import importlib.util
import os

import pytest

BY_NAME_ONLY = (
    *("llamafactory", "axolotl", "megatron-mimo", "aibooster-examples", "planners", "primus"),
    "kubernetes-api",
)
"""Features that CI does not promise: their tests are marked `own_environment`."""


def is_required(feature: str) -> bool:
    required = os.environ.get("ZENITHTUNE_REQUIRE", "").split(",")
    return feature in required or ("all" in required and feature not in BY_NAME_ONLY)


def skip(feature: str, reason: str) -> None:
    """Skip the calling test, or fail it if CI promised that `feature` is there."""
    if is_required(feature):
        pytest.fail(f"{feature} is required by ZENITHTUNE_REQUIRE, but {reason}")
    pytest.skip(reason)


def need_module(feature: str, module: str) -> None:
    if importlib.util.find_spec(module) is None:
        skip(feature, f"{module} is not installed")


def need_root() -> None:
    if os.geteuid() != 0:
        skip("root", "mounting a small disk needs root")
