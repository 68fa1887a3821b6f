"""The examples in docstrings, one test for each module: a worker loads only those whose examples it runs."""

from __future__ import annotations

import doctest
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.requirements import need_module

SRC = ROOT / "src"
WITH_EXAMPLES = sorted(path for path in SRC.rglob("*.py") if ">>> " in path.read_text())


@pytest.fixture
def no_garbage_is_collected() -> Iterator[None]:
    """Doctest walks linecache, from which SQLAlchemy's dying classes take their lines."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SRC)))
def test_the_examples_of_a_module_print_what_they_say(path: Path) -> None:
    if path.is_relative_to(SRC / "zenith_tune" / "mimo"):
        need_module("engines", "torch")
    name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)
