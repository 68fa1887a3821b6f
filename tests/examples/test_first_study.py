"""The notebook of examples/, run cell by cell."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

MAX_BYTES = 50_000


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_notebook", ROOT / "docs" / "generate_notebook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_and_shows_what_it_showed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "demo").symlink_to(ROOT / "examples" / "demo")
    monkeypatch.chdir(tmp_path)
    made = generator()
    committed = json.loads(made.NOTEBOOK.read_text())["cells"]
    for cell, shown in zip(made.run_cells(committed), committed, strict=True):
        kinds = [sorted(output.get("data", {"text": ""})) for output in cell.get("outputs", [])]
        assert kinds == [sorted(output.get("data", {"text": ""})) for output in shown.get("outputs", [])]


def test_the_notebook_is_small_and_comes_with_its_outputs() -> None:
    path = ROOT / "examples" / "first_study.ipynb"
    assert path.stat().st_size < MAX_BYTES
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5 and all(cell["outputs"] for cell in cells)
