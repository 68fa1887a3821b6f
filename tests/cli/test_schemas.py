from __future__ import annotations

import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.cli.test_doctor import H100, LAUNCH, PIPELINE, log_of
from tests.command_runs import running
from tests.conftest import FAKE_TRAINER, ROOT
from zenith_tune.report.json_lines import JsonLinesReporter

Run = Callable[..., subprocess.CompletedProcess[str]]
DOCS = ROOT / "docs"
WITH_MORE = ("Trial", "BestTrial", "TrialFinished", "TrialRecalled", "PointRepeated")
"""Objects that may have other measurements."""
JOB = ("--model", "llama3-8b", "--gbs", "64", "--seq", "4096")
MEGATRON = ("optimize", "--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--study-name", "s", "--json")
TRAIN = ("--", sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0.001")


@functools.cache
def classes(name: str) -> dict[str, Any]:
    """The classes of a schema, in which every field must be known."""
    schema = json.loads((DOCS / "schemas" / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    closed = {each: {"additionalProperties": False} for each in schema["$defs"] if each not in WITH_MORE}
    return {each: about | closed.get(each, {}) for each, about in schema["$defs"].items()}


def complaints(schema: str, kind: str, content: Any) -> list[str]:
    validator = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": classes(schema)})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


def kind_of(event: str) -> str:
    return "".join(part.capitalize() for part in event.split("_"))


def test_the_files_are_those_of_today() -> None:
    subprocess.run([sys.executable, DOCS / "generate_schemas.py", "--check"], check=True)


def test_the_events_of_a_study_and_of_one_that_is_resumed_are_as_the_schema_says(zenithtune: Run) -> None:
    lines: list[str] = []
    for num_trials in (2, 3):
        again = ("--resume",) if lines else ()
        done = zenithtune(*MEGATRON, *again, "--n-trials", str(num_trials), *TRAIN)
        assert done.returncode == 0, done.stderr
        lines += done.stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert {"study_started", "trial_finished", "study_ended"} < {event["event"] for event in events}
    assert [found for event in events if (found := complaints("events", kind_of(event["event"]), event))] == []


def test_every_event_has_a_schema() -> None:
    written = re.findall(r"_write\(\s*\"(\w+)\"", inspect.getsource(JsonLinesReporter))
    assert set(map(kind_of, written)) <= classes("events").keys() and len(written) > 10


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Plan", ("--cluster", "h100x8", "--tokens", "1T", "--emit", "megatron", "--pareto")),
        ("Plan", ("--cluster", "rtx4090x1")),
        ("WhatIf", ("--cluster", "h100x8", "--what-if", "mem=+8")),
        ("ExplainedLayout", ("--cluster", "h100x8", "--explain", "TP2 PP2 mbs1")),
        ("ExplainedLayout", ("--cluster", "h100x8", "--explain", "TP3")),
        ("Comparison", ("--compare", "h100x8,a100x8")),
    ],
)
def test_plans_are_as_the_schema_says(capsys: pytest.CaptureFixture[str], kind: str, options: Iterable[str]) -> None:
    done = running("plan", capsys)("--json", *JOB, *options)
    assert complaints("plan", kind, json.loads(done.out)) == []


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB in total"


def test_diagnoses_are_as_the_schema_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    doctor, against = running("doctor", capsys), ("--json", "--against", "published")
    done = doctor(*against, str(log_of(tmp_path, OUT_OF_MEMORY)))
    assert complaints("doctor", "Unplanned", json.loads(done.out)) == [] and json.loads(done.out)["causes"]
    done = doctor(*against, *H100, "--", *LAUNCH, *PIPELINE)
    assert complaints("doctor", "Diagnosis", json.loads(done.out)) == [] and json.loads(done.out)["against"]["causes"]
    done = doctor("--json", "--cluster", "rtx4090x8", "--", *LAUNCH, *PIPELINE)
    assert complaints("doctor", "Diagnosis", json.loads(done.out)) == [] and json.loads(done.out)["remedies"]


def test_a_field_that_the_schema_does_not_know_is_found() -> None:
    note = {"event": "note", "text": "hello"}
    assert complaints("events", "Note", note) == []
    assert complaints("events", "Note", note | {"more": 1}) and complaints("events", "Note", {"event": "note"})
