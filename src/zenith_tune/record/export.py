"""Writes a study as CSV, as JSON, and its best command as a script."""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import asdict
from typing import Any

from zenith_tune.errors import CommandError
from zenith_tune.evaluators.base import BATCH
from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.search import StudySearch
from zenith_tune.record.view import StudyHeader
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.command_diff import command_diff
from zenith_tune.shell.launchers import EVALUATED
from zenith_tune.shell.scripts.opened import changed_script, with_script, with_text_closed
from zenith_tune.shell.secrets import find_secrets, mask
from zenith_tune.study.files import Json, write_atomically, write_json
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial


def batch_note(study: Study) -> str:
    """Return a note on the gain where the user's own command trains another batch than the best, if both are known.

    A larger batch has fewer gradients to sum and fewer bubbles for its samples, so it is faster whatever the layout.
    """
    base, best = study.baseline, study.best
    if base is None or best is None or not base.ok:
        return ""
    own, theirs = trained_batch(base), trained_batch(best)
    if own is None or theirs is None or own == theirs:
        return ""
    return f"your command trains batch {own}, the trials {theirs}: the gain is not of the layout alone"


def trained_batch(trial: Trial) -> int | None:
    """Return the samples of a trial's step: as its log has them, else as its command says."""
    batch = trial.extra.get(BATCH)
    if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0:
        return batch
    try:
        return ParsedCommand.of(trial.command).count("--global-batch-size")
    except CommandError:
        return None


_COLUMNS = (
    *("number", "outcome", "value", "unit", "spread", "error", "num_samples"),
    *("step_s", "peak_memory_bytes", "duration_s"),
    *("early", "failure", "cause", "why", "command", "folder"),
)


def trial_as_json(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain values, for files and for `--json`."""
    return {
        **trial.extra,
        **{name: getattr(trial, name) for name in _COLUMNS},
        "outcome": str(trial.outcome),
        "is_baseline": trial.is_baseline,
        "rerun_of": trial.rerun_of,
        "parameters": dict(trial.params),
        "folder": str(trial.folder) if trial.folder else None,
    }


def best_as_json(study: Study) -> dict[str, Any] | None:
    """Return the best trial as plain values: what counts of it was measured by the last of its runs."""
    best = study.best
    if best is None:
        return None
    first = study.first_run(best) or best
    return {**trial_as_json(best), "number": first.number, "why": first.why, "reruns": study.reruns_of(best)}


def export(
    study: Study, header: StudyHeader, folder: StudyFolder, best_command: str | None, search: StudySearch | None = None
) -> None:
    """Write trials.csv, study.json, best_command.sh and the change of an opened script, each as a whole."""
    write_atomically(folder.csv, _csv(study))
    write_json(folder.json, study_as_json(study, header, best_command, search))
    if best_command is not None:
        start = f"cd {shlex.quote(header.working_folder)} || exit\n" if header.working_folder else ""
        change = changed_script(header.command, best_command)
        if change is not None:
            about = f"# {change.path} with {folder.best_diff.name} applied\n"
        elif diff := command_diff(header.command, best_command) if EVALUATED in header.command else []:
            about = "".join(f"# {line}\n" for line in ("Your target, with its training command changed:", *diff))
        else:
            about = ""
        write_atomically(
            folder.best_command, f"#!/usr/bin/env bash\n{about}{start}{command_to_copy(header.command, best_command)}\n"
        )
        if change is not None:
            write_atomically(folder.best_diff, mask(change.diff, find_secrets(change.diff)))


def command_to_copy(own: str, best: str) -> str:
    """Return the best command as its user would write it: of a script that was opened, the script's changed text."""
    if (change := changed_script(own, best)) is None:
        return with_text_closed(best)
    readable = with_script(best, change)
    return mask(readable, find_secrets(readable))


def study_as_json(
    study: Study, header: StudyHeader, best_command: str | None, search: StudySearch | None = None
) -> Json:
    """Return a whole study as plain values."""
    return {
        **asdict(header),
        "direction": str(study.direction),
        **outcome_as_json(study),
        "trials": [{**trial_as_json(trial), "identity": trial.identity} for trial in study.runs],
        "best_command": best_command,
        "search": asdict(search or StudySearch()),
    }


def _csv(study: Study) -> str:
    names = list(dict.fromkeys(name for trial in study.trials for name in trial.params))
    head, tail = _COLUMNS[:1], _COLUMNS[1:]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, "is_baseline", *names, *tail])
    for trial in study.runs:
        plain = trial_as_json(trial)
        params = [trial.params.get(name, "") for name in names]
        writer.writerow([*(plain[c] for c in head), trial.is_baseline, *params, *(plain[c] for c in tail)])
    return text.getvalue()


def outcome_as_json(study: Study) -> dict[str, Any]:
    """Return what a study came to as plain values, for its files and for `--json`."""
    return {
        "best": best_as_json(study),
        "baseline": trial_as_json(study.baseline) if study.baseline else None,
        "gain": study.gain,
        "best_is_own": study.best_is_own,
        "is_within_noise": study.is_within_noise,
        "batch_note": batch_note(study),
        "outcomes": {str(outcome): count for outcome, count in study.counts().items()},
        "num_pruned": study.num_pruned,
        "num_repeated": study.num_repeated,
    }
