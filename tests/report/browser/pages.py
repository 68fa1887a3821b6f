"""The data of pages, made once: of a study, a running, a hostile and a long one and more, of a plan, of two studies."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.report.hostile import write_hostile
from tests.report.studies import BASELINE, OOM, TRIALS, Recorded, failed, header, multiplied, ok, recorded
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.planner.planner import Planner
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.source import studies_in
from zenith_tune.report.plan.json import plan_digest
from zenith_tune.report.study_comparison import compared
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.serve.study_index import list_object
from zenith_tune.study.trial import Outcome

Json = dict[str, Any]


def digest_of(study: Recorded) -> Json:
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
    found = digest_of(study)
    study.record.close()
    return found


def _thousand(root: Path) -> Json:
    study = recorded(root, TRIALS[:5])
    multiplied(root / "studies.db", 1000)
    return digest_of(study)


def _failed(root: Path) -> Json:
    """Tell of a study in which your own command and every trial failed."""
    own = replace(failed(1, 1, 1, Outcome.OOM, "out of memory", OOM.format("7.0")), params={}, is_baseline=True)
    return digest_of(recorded(root, [own, *(trial for trial in TRIALS if trial.value is None)]))


def _studies(root: Path) -> Json:
    recorded(root)
    Recorded(root, "t", header(root.parent)).run(TRIALS[:2]).record.close()
    return list_object(studies_in(root), str(root), lambda name: "report.html" if name == "s" else None)


def _memory(root: Path) -> Json:
    """Tell of trials that ran out of memory with and without a figure, and of one that was cancelled."""
    full = "Tried to allocate {} GiB. GPU 0 has a total capacity of 80.00 GiB of which 0.50 GiB is free"
    out = [
        failed(1, 1, mbs, Outcome.OOM, "out of memory", full.format(tried)) for mbs, tried in ((2, 17.2), (4, 155.39))
    ]
    silent = failed(1, 1, 8, Outcome.OOM, "out of memory", "CUDA out of memory")
    by_hand = failed(8, 1, 1, Outcome.CANCELLED, "cancelled from outside", "cancelled by hand")
    trials = [BASELINE, ok(1, 1, 1, 48_000.0), *out, ok(2, 1, 1, 55_000.0), silent, by_hand]
    return digest_of(recorded(root, trials, args={"n_gpus": "8", "gbs": "64"}))


def _compare(root: Path) -> Json:
    first = digest_of(recorded(root))
    other = [BASELINE, ok(2, 2, 1, 67_100.0), ok(8, 1, 1, 40_000.0)]
    return compared(first, digest_of(recorded(root.parent / "two", other, name="t", evaluator="other")))


def _plan(root: Path) -> Json:
    job = JobSpec(seq_len=8192, framework=load_framework("megatron"))
    planner = Planner(load_model("llama3-70b"), load_cluster("h100x64"), job)
    return plan_digest(planner, planner.plan(512, top=8), None)


_MAKERS = {
    "study": lambda root: digest_of(recorded(root)),
    "running": _running,
    "memory": _memory,
    "own": lambda root: digest_of(recorded(root, [BASELINE, ok(1, 1, 1, 11_000.0), ok(2, 1, 1, 12_000.0)])),
    "one": lambda root: digest_of(recorded(root, [BASELINE, ok(1, 1, 1, 91_000.0)])),
    "plain": lambda root: digest_of(recorded(root, args={"n_gpus": "8", "gbs": "64"})),
    "hostile": lambda root: digest_of(write_hostile(root)),
    "thousand": _thousand,
    "compare": _compare,
    "failed": _failed,
    "studies": _studies,
    "plan": _plan,
}
