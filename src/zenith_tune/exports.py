"""Writes a study to MLflow or Weights & Biases, where it has a run for each trial, or for TensorBoard."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from zenith_tune.errors import UsageError
from zenith_tune.record.restored_preset import RestoredPreset
from zenith_tune.record.view import StudyView, TrialView
from zenith_tune.study.parameters import Value
from zenith_tune.units import GIB

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient
    from tensorboardX import SummaryWriter


MEASURED = ("value", "spread", "step_s", "peak_memory_bytes", "duration_s")
FIELDS = ("failure", "cause", "early", "why", "unit", "command")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrial:
    """A trial that has ended."""

    number: int
    label: str
    params: Mapping[str, Value]
    metrics: Mapping[str, float]
    """What was measured, by name; nothing that is no finite number."""
    tags: Mapping[str, str]
    """In text: the outcome, the cause of a failure, the command."""
    is_baseline: bool = False
    went_well: bool = False
    started_s: float | None = None
    ended_s: float | None = None


def exported_trials(view: StudyView) -> list[ExportedTrial]:
    """Return all trials that have ended; those that run are for the next time."""
    preset = RestoredPreset(view.header, view.folder, view.search.cluster)
    return [_exported(view, each, preset.label(each)) for each in view.trials if not each.is_running]


def best_so_far(view: StudyView, trials: list[ExportedTrial]) -> list[tuple[int, float]]:
    """Return the best value after each trial, from the first that went well on; the user's own command left out."""
    found: list[tuple[int, float]] = []
    best: float | None = None
    for trial in trials:
        value = trial.metrics.get("value")
        if value is not None and not trial.is_baseline and (best is None or view.direction.better(value, than=best)):
            best = value
        if best is not None:
            found.append((trial.number, best))
    return found


def _exported(view: StudyView, each: TrialView, label: str) -> ExportedTrial:
    trial = each.trial
    measured = {**{name: getattr(trial, name) for name in MEASURED}, "gain": view.study.row_gain(trial)}
    fields = {"outcome": str(trial.outcome), "label": label, **{name: getattr(trial, name) for name in FIELDS}}
    return ExportedTrial(
        number=each.number,
        label=label,
        params=dict(trial.params),
        metrics={name: float(value) for name, value in measured.items() if value is not None and math.isfinite(value)},
        tags={name: str(text) for name, text in fields.items() if text},
        is_baseline=trial.is_baseline,
        went_well=trial.ok,
        started_s=each.started_s,
        ended_s=each.ended_s,
    )


MARK = "zenithtune."
NUMBER, BEGUN = f"{MARK}trial", f"{MARK}begun"
"""Tags by which a run is found again: of which trial it is, and when that began."""
BATCH = 100
"""The most parameters that MLflow takes at once."""
MAX_CHARS, MAX_KEY_CHARS = 5000, 250
_PAGE = 1000
_HINT = "give another --mlflow, such as sqlite:///mlflow.db or http://host:5000"
_DEFAULTS = {
    # A study goes to the store that is named, and nowhere else.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A server that is away is reported in seconds, not minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}


def export_to_mlflow(view: StudyView, uri: str) -> tuple[int, int]:
    """Write the trials that the store does not have yet; return how many were written, and how many it had."""
    _refuse_uri(uri)
    trials = exported_trials(view)
    with _mlflow(uri) as client:
        experiment = _experiment(client, view)
        runs = {_key(run.data.tags): run for run in _runs(client, experiment)}
        new = [trial for trial in trials if not _is_whole(runs.get(_key(_tags(trial))))]
        for trial in new:
            _write_run(client, experiment, trial, runs.get(_key(_tags(trial))))
        if view.best is not None:
            client.set_experiment_tag(experiment, f"{MARK}best", str(view.study.number_of(view.best)))
    return len(new), len(trials) - len(new)


@contextmanager
def _mlflow(uri: str) -> Iterator[MlflowClient]:
    """Open a store; what MLflow says in many lines is said in one."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own affairs
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
            from sqlalchemy.exc import SQLAlchemyError
        except ImportError as error:
            problem = f"--mlflow needs MLflow, which is not installed ({error})"
            raise UsageError(f"{problem}: pip install 'zenith-tune[mlflow]'") from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            yield MlflowClient(tracking_uri=uri)
        except (MlflowException, SQLAlchemyError, OSError) as error:
            why = " ".join(str(error).split())[:200]
            raise UsageError(f"MLflow does not take the study ({why})", hint=_HINT) from error


def _refuse_uri(uri: str) -> None:
    """Refuse what MLflow would take for its own default."""
    try:
        is_one = bool(uri.strip()) and urlsplit(uri) is not None
    except ValueError:
        is_one = False
    if not is_one:
        raise UsageError(f"--mlflow must be the address of a store, but got {uri!r}", hint=_HINT)


def _experiment(client: MlflowClient, view: StudyView) -> str:
    known = client.get_experiment_by_name(view.name)
    if known is not None:
        return str(known.experiment_id)
    header = view.header
    tags = {"preset": header.preset, "evaluator": header.evaluator, "command": header.command}
    fields = {**tags, "direction": str(view.direction)}
    return str(client.create_experiment(view.name, tags={f"{MARK}{name}": _cut(text) for name, text in fields.items()}))


def _runs(client: MlflowClient, experiment: str) -> Iterator[Run]:
    token: str | None = None
    while True:
        page: Any = client.search_runs([experiment], max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _is_whole(run: Run | None) -> bool:
    """Tell whether a run was written to its end; an export that was killed leaves one that was not."""
    return run is not None and run.info.status in ("FINISHED", "FAILED", "KILLED")


def _write_run(client: MlflowClient, experiment: str, trial: ExportedTrial, begun: Run | None) -> None:
    from mlflow.entities import Metric, Param

    begun_ms, end_ms = _milliseconds(trial.started_s), _milliseconds(trial.ended_s)
    run = begun or client.create_run(experiment, begun_ms, tags=_tags(trial), run_name=_cut(trial.label, MAX_KEY_CHARS))
    run_id = run.info.run_id
    metrics = [Metric(_name(name), value, end_ms or begun_ms or 0, 0) for name, value in trial.metrics.items()]
    params = [Param(_name(name), _cut(str(value))) for name, value in trial.params.items()]
    client.log_batch(run_id, metrics=metrics)
    for start in range(0, len(params), BATCH):
        client.log_batch(run_id, params=params[start : start + BATCH])
    status = "FINISHED" if trial.went_well else "KILLED" if trial.tags["outcome"] == "cancelled" else "FAILED"
    client.set_terminated(run_id, status, end_ms)


def _tags(trial: ExportedTrial) -> dict[str, str]:
    own = {NUMBER: str(trial.number), BEGUN: "" if trial.started_s is None else f"{trial.started_s:.3f}"}
    baseline = {"baseline": "true"} if trial.is_baseline else {}
    return {name: _cut(text) for name, text in {**trial.tags, **baseline, **own}.items()}


def _key(tags: Mapping[str, str]) -> tuple[str, str]:
    return tags.get(NUMBER, ""), tags.get(BEGUN, "")


def _name(text: str) -> str:
    """Return a name that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", text, flags=re.ASCII).strip("./ ")[:MAX_KEY_CHARS] or "_"


def _cut(text: str, limit: int = MAX_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


OWN_FILE = ".zenithtune"
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
    if target.exists() and not (target / OWN_FILE).is_file():
        raise UsageError(f"{target} was not written by an export, and is left alone", hint="give another --tensorboard")
    draft = folder / f".{view.name}.{os.getpid()}.tmp"
    try:
        draft.mkdir(parents=True)
        with SummaryWriter(logdir=str(draft)) as writer:
            _write_events(writer, view, trials)
        (draft / OWN_FILE).write_text("")
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror})", hint="give another --tensorboard") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target, len(trials)


def _write_events(writer: SummaryWriter, view: StudyView, trials: list[ExportedTrial]) -> None:
    for number, value in best_so_far(view, trials):
        writer.add_scalar("study/best_so_far", value, number)
    for trial in trials:
        for name, value in _shown(trial).items():
            writer.add_scalar(f"study/{name}", value, trial.number, walltime=trial.ended_s)
        fields = {"trial": trial.label, "outcome": trial.tags["outcome"], "unit": view.unit}
        metrics = {f"trial/{name}": value for name, value in _shown(trial).items()}
        name = "your-command" if trial.is_baseline else f"trial-{trial.number:04d}"
        writer.add_hparams({**trial.params, **fields}, metrics, name=name, global_step=trial.number)


def _shown(trial: ExportedTrial) -> dict[str, float]:
    """Return measurements in the units that people read, under names that TensorBoard leaves as they are."""
    shown = {name: trial.metrics[name] for name in ("value", "step_s", "duration_s") if name in trial.metrics}
    memory = trial.metrics.get("peak_memory_bytes")
    return shown if memory is None else {**shown, "peak_memory_gib": memory / GIB}


def export_to_wandb(view: StudyView, project: str) -> int:
    """Write each trial as a run of a project, grouped by the study; one that is there is continued, not doubled."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing goes elsewhere
    try:
        import wandb
    except ImportError as error:
        problem = f"--wandb needs wandb, which is not installed ({error})"
        raise UsageError(f"{problem}: pip install 'zenith-tune[wandb]'") from error
    trials = exported_trials(view)
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    try:
        for trial in trials:
            run_id = hashlib.sha256(f"{view.name} {trial.number} {trial.started_s}".encode()).hexdigest()[:16]
            run = wandb.init(
                project=project,
                group=view.name,
                name=_cut(trial.label, MAX_KEY_CHARS),
                id=run_id,
                resume="allow",
                config={**trial.params, **trial.tags, "trial": trial.number, "baseline": trial.is_baseline},
                settings=quiet,
                reinit="finish_previous",
            )
            run.summary.update(dict(trial.metrics))
            run.finish(exit_code=int(not trial.went_well))
    except (wandb.Error, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        hint = "run `wandb login`, or set WANDB_MODE=offline"
        raise UsageError(f"Weights & Biases does not take the study ({why})", hint=hint) from error
    finally:
        wandb.teardown()
    return len(trials)
