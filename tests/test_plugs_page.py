"""The preset, strategy, evaluator and runner of docs/plugs.md, held to their contracts as the page writes them."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT
from tests.test_readme import blocks
from tests.warm_process import run_python
from zenith_tune import CategoricalParameter, Parameter, TuningPreset, testing
from zenith_tune.presets.parts import CompletePreset, completed
from zenith_tune.runners.base import Job, Runner
from zenith_tune.study.parameters import Value

PAGE = "docs/plugs.md"


def test_every_example_of_the_page_passes_its_contract(tmp_path: Path) -> None:
    code = "\n\n".join(blocks(PAGE, "python"))
    (tmp_path / "test_page.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["-m", "pytest", "-q", "-rA", "-W", "error", "-p", "no:cacheprovider", "."]
    done = run_python(words, tmp_path, os.environ, timeout_s=500)
    assert done.returncode == 0, done.stdout
    suites = [name for name in testing.__all__ if name.endswith("Contract")]
    held = set(re.findall(r"class Test\w+\((\w+)\)", code))
    assert held == set(suites), "the page leaves a contract out"
    for suite in suites:
        (subject,) = re.findall(rf"class (Test\w+)\({suite}\)", code)
        assert f"::{subject}::" in done.stdout, f"nothing of {subject} ran"
    assert "PASSED test_page.py::test_a_study_with_all_of_them" in done.stdout


def test_the_page_names_every_method_that_a_runner_and_a_job_must_have() -> None:
    page = (ROOT / PAGE).read_text()
    for cls in (Runner, Job):
        needed = [name for name, _ in inspect.getmembers(cls, inspect.isroutine) if not name.startswith("_")]
        assert len(needed) >= 4
        assert [name for name in needed if not re.search(rf"`{name}\b|def {name}\(", page)] == []


def test_the_page_names_every_method_of_a_preset_with_its_part() -> None:
    page = (ROOT / PAGE).read_text()
    own = [name for name in vars(TuningPreset) if not name.startswith("_") and callable(getattr(TuningPreset, name))]
    assert len(own) == 8
    assert [name for name in own if f"`{name}(" not in page] == []
    for part in CompletePreset.__bases__:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{part.__name__}` |")]
        described = set(re.findall(r"`(\w+)`", row.rpartition("|")[0].rpartition("|")[2]))
        assert described == {name for name in vars(part) if not name.startswith("_")}


def test_a_preset_that_just_defines_optional_methods_is_asked_for_them() -> None:
    class Plain(TuningPreset):
        def get_search_space(self) -> dict[str, Parameter]:
            return {"batch": CategoricalParameter([8, 16])}

        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return command

        def label(self, params: Mapping[str, Value]) -> str:
            return f"batch of {params['batch']}"

    preset = completed(Plain())
    assert preset.label({"batch": 8}) == "batch of 8"
    assert preset.placeholder_names() == {"batch"}
    assert list(preset.points()) == [{"batch": 8}, {"batch": 16}]
    assert preset.planned_layout("python train.py", {"batch": 8}) is None
    assert preset.files({"batch": 8}) == {} and completed(preset) is preset
