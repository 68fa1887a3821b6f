"""The result of a probe: one JSON file with all that was measured and modelled, for people, programs, calibration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from zenith_calibration.calibrate.probed_runs import FILE_NAME
from zenith_calibration.probe.probed_layout import ProbedLayout
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import StudyError
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.record.folder import StudyLock
from zenith_tune.runners.base import Runner
from zenith_tune.shell.secret_names import shaped_secrets
from zenith_tune.shell.secrets import mask_file
from zenith_tune.study.files import Json, TrialFolder, write_json
from zenith_tune.study.trial import Outcome
from zenith_tune.study.trial_log import TrialLog
from zenith_tune.units import MIB


def probe_object(subject: PlanSubject | Planner, probed: Sequence[ProbedLayout]) -> Json:
    """Return the job and its probed layouts, in the order given."""
    model, cluster, job = subject.model, subject.cluster, subject.job
    return {
        "framework": job.framework.name,
        "model": asdict(model),
        "gpu": cluster.gpu.name,
        "num_gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "seq_len": job.seq_len,
        "precision": job.precision,
        "dispatcher": job.dispatcher,
        "layouts": [_layout_object(each) for each in probed],
    }


def write_probe(folder: Path, content: Json) -> Path:
    """Write the file into a probe's folder."""
    write_json(folder / FILE_NAME, content)
    return folder / FILE_NAME


def _layout_object(probed: ProbedLayout) -> Json:
    layout = probed.planned.layout
    return {
        "name": probed.planned.name,
        # A preset may add fields of its own, which are not written.
        "layout": {field.name: getattr(layout, field.name) for field in fields(Layout)},
        "ok": probed.ok,
        "cause": probed.cause,
        "stages": [
            {
                **asdict(stage.probe),
                "planned": asdict(stage.plan),
                "compute_s": stage.compute_s,
                "time_ratio": stage.time_ratio,
                "memory_ratio": stage.memory_ratio,
            }
            for stage in probed.stages
        ],
        "planned": _figures(probed.planned),
        "combined": _figures(probed.combined()) if probed.ok else None,
    }


def _figures(planned: PlannedLayout) -> Json:
    return {
        "step_s": planned.step_s,
        "time_parts": planned.time_parts,
        "memory_bytes": planned.memory_bytes,
        "tokens_per_s": planned.tokens_per_s,
        "mfu": planned.mfu,
    }


MOST_LOG_BYTES = 4 * MIB
"""Bytes of a log in which secrets are sought by their shape alone."""


def probe_lock(folder: Path) -> StudyLock:
    """Return the lock that a probe holds on its folder for as long as it lives, however it ends."""
    return StudyLock(folder / FILE_NAME, "probe")


def end_leftovers(output_dir: Path, runner: Runner, secrets: Sequence[str]) -> list[Path]:
    """End the ranks of probes in a folder that were killed, mask their logs, and return those probes' folders.

    A probe that runs holds its lock and is left alone. The command of a killed one is no longer known: `secrets` are
    those of this one, which is mostly the same, and secrets of a known shape are found too.
    """
    found = []
    for folder in sorted(output_dir.glob("probe-*")):
        if not any(_cut_off(folder)):
            continue
        lock = probe_lock(folder)
        # Somebody holds it, or it is not ours to write.
        with contextlib.suppress(StudyError, PermissionError):
            lock.acquire()
            try:
                for files in _cut_off(folder):  # looked at again, now that nobody else ends them
                    runner.recover(files.path)
                    shaped = shaped_secrets(TrialLog(files.log).text(MOST_LOG_BYTES))
                    mask_file(files.log, [*secrets, *shaped])
                    write_json(files.trial, {"outcome": Outcome.CANCELLED, "cause": "its probe was cut off"})
                found.append(folder)
            finally:
                lock.release()
    return found


def _cut_off(folder: Path) -> Iterator[TrialFolder]:
    """Yield the ranks that were started and whose end was never recorded."""
    real = Path(os.path.realpath(folder))
    for path in sorted(folder.glob("layout-*/stage-*")):
        files, is_own = TrialFolder(path), Path(os.path.realpath(path)) == real.joinpath(*path.parts[-2:])
        # What a link leads to is not this probe's. Where nobody may look, os.path sees nothing and pathlib raises.
        if is_own and os.path.lexists(files.command) and not os.path.lexists(files.trial):
            yield files
