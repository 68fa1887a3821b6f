"""The examples in the docstrings of zenith_tune.mimo, in the one process that loads torch for them."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "src" / "zenith_tune" / "mimo"
WITH_EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if ">>>" in path.read_text())


@pytest.mark.usefixtures("has_torch")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_of_a_module_print_what_they_say(path: Path) -> None:
    result = doctest.testmod(importlib.import_module(f"zenith_tune.mimo.{path.stem}"))
    assert (result.failed, result.attempted > 0) == (0, True)
