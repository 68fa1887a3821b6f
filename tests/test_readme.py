"""The README's and the documentation's examples, run as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mentions import mentions
from tests.warm_process import run_python


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=500)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def gain_in(text: str) -> float:
    """Return the percentage of the last gain."""
    return 100 * float(re.findall(r"^([\d.]+)x faster", text, re.MULTILINE)[-1]) - 100


@pytest.mark.slow
def test_the_readmes_first_study_works_as_written(folder: Path) -> None:
    (command,) = [block for block in blocks("README.md", "sh") if "examples/demo/train.sh" in block]
    done = run(["bash", "-c", command], folder)
    assert done.returncode == 0, done.stderr
    assert abs(gain_in(done.stdout) - gain_in((ROOT / "README.md").read_text())) < 1, "the README shows another result"


def test_the_planners_python_works_as_written(folder: Path) -> None:
    (code,) = blocks("docs/planner.md", "python")
    done = run_python(["-c", code], folder, os.environ, timeout_s=500)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_calibrations_of_the_documentation_work_as_written(folder: Path) -> None:
    (rows,) = blocks("docs/calibration.md", "csv")
    (folder / "runs.csv").write_text(rows)
    for commands in blocks("docs/calibration.md", "sh"):
        done = run(["bash", "-ec", commands], folder)
        assert done.returncode == 0, done.stderr
        assert mentions(done.stdout, "tok/s/GPU", "zenithtune plan")


@pytest.mark.slow
def test_a_placeholder_works_as_typed(folder: Path) -> None:
    assert "`TP={tp} bash train.sh`" in (ROOT / "docs" / "README.md").read_text()
    (folder / "train.sh").write_text(
        'exec python examples/fake_megatron_train.py --iteration-seconds 0.001 --tensor-model-parallel-size $TP "$@"\n'
    )
    line = "zenithtune optimize --preset megatron --gpus 8 --gbs 16 --n-trials 3 -q -- TP={tp} bash train.sh"
    done = run(["bash", "-c", line], folder)
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(r"TP=\d bash train.sh\n", done.stdout), done.stdout


def test_pages_name_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {target for page in PAGES for target in re.findall(r"(?:^|`)make (\w+)", (ROOT / page).read_text(), re.M)}
    assert "demo" in named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_readme_is_read_in_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 900


@pytest.mark.slow
def test_the_first_studys_commands_work_as_written(folder: Path) -> None:
    commands = [block for block in blocks("docs/first-study.md", "sh") if not block.startswith("make ")]
    assert len(commands) >= 5
    said = ""
    for command in commands:
        done = run(["bash", "-ec", command], folder)
        assert done.returncode == 0, f"{command}{done.stderr}"
        said += done.stdout
    page = (ROOT / "docs/first-study.md").read_text()
    assert abs(gain_in(said) - gain_in(page)) < 1, "the page shows another result"
    assert re.search(r"^note: resumed", said, re.MULTILINE)


def test_the_megatron_page_quotes_what_was_measured() -> None:
    page = (ROOT / "docs/megatron.md").read_text()
    measured = json.loads((ROOT / "benchmarks/results/h200-optimize-2026-11-15.json").read_text())["studies"]["dense"]
    base = measured[0]["value"]
    for trial in measured:
        gain = "" if trial["is_baseline"] else f"{100 * (trial['value'] / base - 1):+.1f}%"
        row = f"{trial['value']:,.0f} | {gain}"
        assert f"| {row.strip()} | {trial['step_s']:.2f} s | {trial['peak_memory_bytes'] / 2**30:.1f} GiB |" in page, (
            row
        )


PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made on GitHub."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def sentences(text: str) -> list[str]:
    """Return the sentences outside of code: paragraphs, items of lists and cells of tables, cut at full stops."""
    plain = re.sub(r"^ *```.*?^ *```$|^    [^\n]*$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)|(?<!\\)\|", plain)
    return [sentence for part in parts for sentence in re.split(r"(?<=[.!?])[\"')*`]*\s+", part)]


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_has_more_than_forty_words(page: str) -> None:
    assert [sentence for sentence in sentences((ROOT / page).read_text()) if len(sentence.split()) > 40] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", (ROOT / page).read_text()):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def test_the_index_of_the_documentation_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
