"""Studies for tests of reports: written by the real record, with the logs that their trials would have left."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import sqlite3
import weakref
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from zenith_tune.record.folder import DATABASE_NAME, StudyFolder
from zenith_tune.record.record import StudyRecord
from zenith_tune.record.storage import database_url
from zenith_tune.record.view import StudyHeader
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import GIB

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
COMMAND = "torchrun pretrain_gpt.py --seq-length 4096 --use-distributed-optimizer"
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 79.10 GiB"
REFUSED = "AssertionError: global batch size (64) is not divisible"
SPACE: dict[str, Parameter] = {
    **{name: CategoricalParameter([1, 2, 4, 8]) for name in ("tp", "pp", "cp", "ep", "etp", "mbs")},
    "recompute_granularity": CategoricalParameter(["full", "selective"]),
    "recompute_method": CategoricalParameter(["uniform", "block"]),
    "recompute_num_layers": CategoricalParameter([1, 2, 3, 4]),
    "vit_gradient_checkpointing": CategoricalParameter(["true", "false"]),
}


def header(folder: Path, **changes: Any) -> StudyHeader:
    """Return the header of a study that the planner knows all about."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    args = {"n_gpus": "8", "gbs": "64", "model": str(config), "cluster": "h100x8", "seq": "4096", "folding": "True"}
    return replace(StudyHeader(preset="megatron", args=args, command=COMMAND, evaluator="megatron tokens"), **changes)


def point(tp: int, pp: int, mbs: int) -> dict[str, Any]:
    return {"tp": tp, "pp": pp, "cp": 1, "ep": 1, "etp": 1, "mbs": mbs, **FULL, "vit_gradient_checkpointing": "true"}


def ok(tp: int, pp: int, mbs: int, value: float, **more: Any) -> Trial:
    memory = round((75 - 4 * tp - 3 * pp) * GIB)
    measured: dict[str, Any] = {
        "step_s": 64 * 4096 / value,
        "peak_memory_bytes": memory,
        "spread": 0.01,
        "unit": "tokens/s",
    }
    return Trial(params=point(tp, pp, mbs), outcome=Outcome.OK, value=value, duration_s=9.0, **measured, **more)


def failed(tp: int, pp: int, mbs: int, outcome: Outcome, failure: str, cause: str) -> Trial:
    return Trial(params=point(tp, pp, mbs), outcome=outcome, failure=failure, cause=cause, duration_s=2.0)


BASELINE = Trial(
    params={},
    outcome=Outcome.OK,
    value=50_000.0,
    unit="tokens/s",
    spread=0.01,
    step_s=5.24,
    duration_s=9.0,
    is_baseline=True,
)
TRIALS = (
    BASELINE,
    ok(1, 1, 1, 48_000.0, why="the first of the plan"),
    failed(1, 1, 4, Outcome.OOM, "out of memory", OOM.format("12.5")),
    ok(2, 1, 1, 55_000.0),
    ok(2, 2, 1, 61_000.0, why="34% chance of a gain"),
    failed(2, 1, 8, Outcome.OOM, "out of memory", OOM.format("3.5")),
    ok(4, 1, 2, 52_000.0),
    failed(8, 1, 8, Outcome.ERROR, "configuration", REFUSED),
    ok(4, 2, 1, 58_500.0),
    failed(1, 4, 2, Outcome.TIMEOUT, "timeout", "it ran longer than 20 s"),
)
BEST = 4
"""The number of the best of these, which has a pipeline."""


class Recorded:
    """A study that is being written, until nobody refers to it."""

    def __init__(self, root: Path, name: str, about: StudyHeader) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.folder = StudyFolder(root, name)
        self.folder.create()
        self.url = database_url(root / DATABASE_NAME)
        self.record = StudyRecord(self.url, name, self.folder)
        weakref.finalize(self, self.record.close)
        self.record.create(about, Direction.MAXIMIZE)

    def start(self, trial: Trial, log: str = "", space: dict[str, Parameter] = SPACE) -> int:
        run = replace(trial, identity=json.dumps(dict(trial.params))).key
        number = self.record.start(trial.params, space, run, why=trial.why)
        folder = self.folder.trial(number)
        folder.path.mkdir(parents=True)
        folder.command.write_text(f"#!/usr/bin/env bash\n{COMMAND} --trial {number}\n")
        folder.log.write_text(log or f"starting\nstep 1 of 2\n{trial.cause or 'done'}\n")
        return number

    def finish(self, number: int, trial: Trial) -> None:
        self.record.finish(replace(trial, number=number, command=trial.command or f"{COMMAND} --trial {number}"))

    def run(self, trials: Iterable[Trial]) -> Recorded:
        for trial in trials:
            self.finish(self.start(trial), trial)
        return self


def recorded(root: Path, trials: Iterable[Trial] = TRIALS, *, name: str = "s", **changes: Any) -> Recorded:
    """Write a whole study; the usual one is written once in a process and copied, which takes a tenth of the time."""
    if trials is TRIALS and not changes and not root.exists():
        original = _usual(name)
        study = copy(original)
        header(root.parent)
        shutil.copytree(original.folder.output_dir, root)
        _move(root / DATABASE_NAME, original.folder.output_dir.parent, root.parent)
        study.folder, study.url = StudyFolder(root, name), database_url(root / DATABASE_NAME)
        return study
    study = Recorded(root, name, header(root.parent, **changes)).run(trials)
    study.record.close()
    return study


@functools.cache
def _usual(name: str) -> Recorded:
    folder = Path(mkdtemp(prefix="zenithtune-usual-study-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    study = Recorded(folder / "out", name, header(folder)).run(TRIALS)
    study.record.close()
    return study


def _move(database: Path, old: Path, new: Path) -> None:
    """Let a copied study name its own folder."""
    with sqlite3.connect(database) as connection:
        for table in ("study_user_attributes", "trial_user_attributes"):
            connection.execute(f"update {table} set value_json = replace(value_json, ?, ?)", (str(old), str(new)))
    connection.close()


def multiplied(database: Path, count: int) -> None:
    """Add copies of a database's last trial until there are `count`: writing each by Optuna would take a minute."""
    with sqlite3.connect(database) as connection:
        last, number = connection.execute("select trial_id, number from trials order by number desc").fetchone()
        for more in range(1, count - number):
            new = last + more
            columns = "study_id, state, datetime_start, datetime_complete"
            connection.execute(
                f"insert into trials (trial_id, number, {columns}) select ?, ?, {columns} from trials where trial_id=?",
                (new, number + more, last),
            )
            for table, names in {
                "trial_params": "param_name, param_value, distribution_json",
                "trial_values": "objective, value, value_type",
                "trial_user_attributes": "key, value_json",
            }.items():
                copied = f"insert into {table} (trial_id, {names}) select ?, {names} from {table} where trial_id=?"
                connection.execute(copied, (new, last))
            connection.execute("update trial_values set value = value + ? where trial_id = ?", (more * 7 % 1000, new))
            # Two runs of one identity would be one run that was tried again.
            connection.execute(
                "update trial_user_attributes set value_json = replace(value_json, 'identity\": \"', ?) "
                "where trial_id = ? and key = 'run'",
                (f'identity": "{new}', new),
            )
    connection.close()
