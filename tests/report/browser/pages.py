"""The data of pages, made once: of a study, a running, a hostile and a long one, of a plan, of two studies."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.report.hostile import write_hostile
from tests.report.studies import BASELINE, TRIALS, Recorded, header, multiplied, ok, recorded
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.planner import Planner
from zenith_tune.record.study_reader import StudyReader
from zenith_tune.report.plan_digest import plan_digest
from zenith_tune.report.study_comparison import compared
from zenith_tune.report.study_digest import StudyDigest

Json = dict[str, Any]


def told(study: Recorded) -> Json:
    return StudyDigest(StudyReader(study.url, study.folder.path.name)).object()


@cache
def _written(kind: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return json.dumps(_MAKERS[kind](Path(folder) / "out"), default=str)


def data(kind: str) -> Json:
    """Return the data of a page, which the caller may change."""
    content: Json = json.loads(_written(kind))
    return content


def _running(root: Path) -> Json:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:4])
    study.start(TRIALS[4], log="loading\niteration 3/10\n")
    found = told(study)
    study.record.close()
    return found


def _thousand(root: Path) -> Json:
    study = recorded(root, TRIALS[:5])
    multiplied(root / "studies.db", 1000)
    return told(study)


def _compare(root: Path) -> Json:
    first = told(recorded(root))
    other = [BASELINE, ok(2, 2, 1, 67_100.0), ok(8, 1, 1, 40_000.0)]
    return compared(first, told(recorded(root.parent / "two", other, name="t", evaluator="other")))


def _plan(root: Path) -> Json:
    job = JobSpec(seq_len=8192, framework=load_framework("megatron"))
    planner = Planner(load_model("llama3-70b"), load_cluster("h100x64"), job)
    return plan_digest(planner, planner.plan(512, top=8), None)


_MAKERS = {
    "study": lambda root: told(recorded(root)),
    "running": _running,
    "plain": lambda root: told(recorded(root, args={"n_gpus": "8", "gbs": "64"})),
    "hostile": lambda root: told(write_hostile(root)),
    "thousand": _thousand,
    "compare": _compare,
    "plan": _plan,
}
