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

SOURCES = (ROOT / "src", *sorted(ROOT.glob("*/src")))
"""The sources of all packages."""
WITH_EXAMPLES = sorted(
    (source, path) for source in SOURCES for path in source.rglob("*.py") if ">>> " in path.read_text()
)


@pytest.fixture
def no_garbage_is_collected() -> Iterator[None]:
    """Doctest walks linecache, from which SQLAlchemy's dying classes take their lines."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize(("source", "path"), WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_module_print_what_they_say(source: Path, path: Path) -> None:
    name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    need_module("engines", name.partition(".")[0])
    if source.parent.name in ("checkpoint", "mimo") or name == "zenith_tune.mimo":
        need_module("engines", "torch")
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)
