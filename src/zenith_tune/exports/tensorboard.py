"""Writes a study for TensorBoard: the table of parameters and measurements, and curves over the trials."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.errors import UsageError
from zenith_tune.exports.exported_trial import ExportedTrial, best_so_far, exported_trials
from zenith_tune.record.view import StudyView
from zenith_tune.units import GIB

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

MARK = ".zenithtune"
"""The file by which an export knows that a folder is its own, and may be replaced."""


def export_to_tensorboard(view: StudyView, folder: Path) -> tuple[Path, int]:
    """Write all trials to a folder of the study's name in `folder`; what an earlier export wrote there is replaced."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        problem = f"--tensorboard needs tensorboardX, which is not installed ({error})"
        raise UsageError(f"{problem}: pip install 'zenith-tune[tensorboard]'") from error
    trials = exported_trials(view)
    target = folder / view.name
    if target.exists() and not (target / MARK).is_file():
        raise UsageError(f"{target} was not written by an export, and is left alone", hint="give another --tensorboard")
    draft = folder / f".{view.name}.{os.getpid()}.tmp"
    try:
        draft.mkdir(parents=True)
        with SummaryWriter(logdir=str(draft)) as writer:
            _write(writer, view, trials)
        (draft / MARK).write_text("")
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror})", hint="give another --tensorboard") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target, len(trials)


def _write(writer: SummaryWriter, view: StudyView, trials: list[ExportedTrial]) -> None:
    for number, value in best_so_far(view, trials):
        writer.add_scalar("study/best_so_far", value, number)
    for trial in trials:
        for name, value in _shown(trial).items():
            writer.add_scalar(f"study/{name}", value, trial.number, walltime=trial.ended_s)
        fields = {"trial": trial.label, "outcome": trial.tags["outcome"], "unit": view.unit}
        params = {name: _plain(value) for name, value in trial.params.items()}
        metrics = {f"trial/{name}": value for name, value in _shown(trial).items()}
        writer.add_hparams({**params, **fields}, metrics, name=_run_name(trial), global_step=trial.number)


def _shown(trial: ExportedTrial) -> dict[str, float]:
    """Return measurements in the units that people read, under names that TensorBoard leaves as they are."""
    shown = {name: trial.metrics[name] for name in ("value", "step_s", "duration_s") if name in trial.metrics}
    memory = trial.metrics.get("peak_memory_bytes")
    return shown if memory is None else {**shown, "peak_memory_gib": memory / GIB}


def _plain(value: object) -> bool | str | float | int:
    return value if isinstance(value, bool | str | float | int) else str(value)


def _run_name(trial: ExportedTrial) -> str:
    return "your-command" if trial.is_baseline else f"trial-{trial.number:04d}"
