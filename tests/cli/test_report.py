"""The command `zenithtune report`, and the page of `zenithtune plan`."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_runs import Run, as_json, running
from tests.conftest import FAKE_TRAINER
from tests.plan_runs import LLAMA
from tests.report.studies import BASELINE, BEST, TRIALS, ok, recorded

ZenithTune = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "zenithtune-out")
    return running("report", capsys)


def test_the_page_is_written_into_the_study_s_folder(report: Run, tmp_path: Path) -> None:
    done = report("s")
    path = tmp_path / "zenithtune-out" / "s" / "report.html"
    assert (done.code, done.out, done.err) == (0, f"written: {path}\n", "")
    assert path.read_text().startswith("<!doctype html>")
    assert not [each for each in path.parent.iterdir() if each.suffix == ".tmp"]


def test_a_folder_and_a_file_name_a_study_too(report: Run, tmp_path: Path) -> None:
    assert report("zenithtune-out/s", "--output", "a.html").code == 0
    assert report("s", "--output-dir", str(tmp_path / "zenithtune-out"), "--output", "b.html").code == 0
    assert report("s", "--db", str(tmp_path / "zenithtune-out" / "studies.db"), "--output", "c.html").code == 0
    assert {path.name for path in tmp_path.glob("*.html")} == {"a.html", "b.html", "c.html"}


def test_other_formats_go_to_stdout_or_to_a_file_by_its_ending(report: Run, tmp_path: Path) -> None:
    assert report("s", "--format", "md").out.startswith("## Study s\n")
    rows = list(csv.DictReader(io.StringIO(report("s", "--format", "csv").out)))
    assert len(rows) == len(TRIALS)
    assert as_json(report("s", "--format", "json"))["best"] == BEST
    assert report("s", "--output", "report.md").out == "written: report.md\n"
    assert (tmp_path / "report.md").read_text() == report("s", "--format", "md").out
    assert report("s", "--format", "markdown").out == report("s", "--format", "md").out


@pytest.mark.parametrize("arguments", [[], ["zenithtune-out"], ["--output-dir", "zenithtune-out"]])
def test_without_a_name_it_is_the_study_that_was_begun_last(report: Run, tmp_path: Path, arguments: list[str]) -> None:
    recorded(tmp_path / "zenithtune-out", [BASELINE, ok(2, 2, 1, 67_100.0)], name="t")
    assert report(*arguments).out.endswith("zenithtune-out/t/report.html\n")


def test_two_studies_are_compared_in_every_format_but_csv(report: Run, tmp_path: Path) -> None:
    recorded(tmp_path / "zenithtune-out", [BASELINE, ok(2, 2, 1, 67_100.0)], name="t")
    assert as_json(report("s", "--compare", "t", "--format", "json"))["gain"] == pytest.approx(0.1)
    assert re.search(r"\*\*t\*\* .*10\.0% faster .*\*\*s\*\*", report("s", "--compare", "t", "--format", "md").out)
    assert report("s", "--compare", "t").out.endswith("zenithtune-out/report-s-t.html\n")
    refused = report("s", "--compare", "t", "--format", "csv")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["r"], "unknown study 'r'."),
        (["s", "--compare", "nope"], "unknown study 'nope'. Known: s."),
        (["s", "--output", "gone/report.html"], "--output 'gone/report.html'"),
        (["s", "--output", "zenithtune-out"], "'zenithtune-out'"),
        (["s", "--db", "gone.db"], "gone.db"),
        (["s", "--format", "pdf"], "'pdf'"),
        (["--output-dir", "gone"], "gone"),
    ],
)
def test_a_mistake_is_one_line(report: Run, arguments: list[str], said: str) -> None:
    done = report(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


def test_an_unknown_study_is_refused_without_loading_rich_or_torch(report: Run, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom zenith_tune.cli.main import main\n"
        "try:\n    main(['report', 'r'])\n"
        "finally:\n    print([name for name in ('rich', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout) == (2, "[]\n")


@pytest.mark.slow
def test_a_real_study_is_reported_from_its_record_and_from_its_export(zenithtune: ZenithTune, tmp_path: Path) -> None:
    args = ["--preset", "demo", "--args", "n_gpus=8,gbs=16", "--n-trials", "5", "--study-name", "first"]
    tuned = zenithtune("optimize", "-v", *args, "--", sys.executable, str(FAKE_TRAINER))
    assert tuned.returncode == 0, tuned.stderr
    content = json.loads(zenithtune("report", "first", "--format", "json").stdout)
    assert len(content["trials"]) == 6  # with the own command again, which confirms the gain
    assert content["best_command"] in tuned.stdout
    exported = json.loads(zenithtune("report", "zenithtune-out/first/study.json", "--format", "json").stdout)
    for name in ("best", "gain", "best_command", "unit", "outcomes", "header"):
        assert exported[name] == content[name], name
    assert zenithtune("report", "first").returncode == 0
    assert "<!doctype html>" in (tmp_path / "zenithtune-out" / "first" / "report.html").read_text()


def test_a_plan_is_written_as_a_page_beside_what_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan, path = running("plan", capsys), tmp_path / "plan.html"
    done = plan(*LLAMA, "--html", str(path))
    assert done.code == 0 and f"written: {path}" in done.out and "layouts considered" in done.out
    assert '"kind":"plan"' in path.read_text()
    content = as_json(plan(*LLAMA, "--html", str(path), "--json"))
    assert f'"name":"{content["best"][0]["name"]}"' in path.read_text()
    emitted = plan(*LLAMA, "--html", str(path), "--emit", "megatron")
    assert "written" not in emitted.out and "pretrain_gpt.py" in path.read_text()


@pytest.mark.parametrize("more", [("--explain", "TP8"), ()])
def test_a_page_of_a_plan_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    target = tmp_path / "plan.html" if more else tmp_path
    done = running("plan", capsys)(*LLAMA, "--html", str(target), *more)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--html" in done.err
