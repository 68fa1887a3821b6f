"""The examples of docs/api.md, run as written, one after the other."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

import zenith_tune
from tests.conftest import ROOT
from tests.test_readme import blocks

PAGE = "docs/api.md"


@pytest.mark.slow
def test_every_example_of_the_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    snippets = blocks(PAGE, "python")
    assert len(snippets) >= 6
    for snippet in snippets:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(snippet, PAGE, "exec"), {})
        assert "print(" not in snippet or printed.getvalue().strip()
    assert (tmp_path / "from-python.svg").read_text().startswith("<svg")


def test_the_page_names_every_function_and_result() -> None:
    page = (ROOT / PAGE).read_text()
    for name in ("plan", "estimate", "diagnose", "tune", "StudyResult", "RunDiagnosis", "Gain", "Plan", "UsageError"):
        assert f"`{name}" in page or f"zenith_tune.{name}" in page, name
        assert name in zenith_tune.__all__
