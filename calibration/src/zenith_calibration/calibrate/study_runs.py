"""Measured runs from a finished study: its trials are runs of one model on one cluster."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_calibration.calibrate.measured_rows import recompute_kind
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import CommandError, UsageError
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.files import Json, read_regular
from zenith_tune.units import MIB

FILE_NAME = "study.json"
MAX_BYTES = 256 * MIB
SIZES = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs")
_PRETRAIN_SCRIPT = re.compile(r"\bpretrain_\w+\.py\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedJob:
    """What a study's own files do not state about the job that it tuned."""

    model: ModelSpec
    cluster: ClusterSpec
    seq_len: int
    global_batch: int | None = None
    """Samples per step; None where the study's arguments state it."""
    framework: str = "megatron"
    precision: str = "bf16"


def read_study(folder: Path, job: StudiedJob) -> list[MeasuredRun]:
    """Read the trials of a study as runs, each with the layout that it records.

    The data-parallel size is Megatron's, n_gpus / (tp*pp*cp), whatever rule the study pruned by.
    """
    study = _load(folder)
    args = args if isinstance(args := study.get("args"), dict) else {}
    asked, had = job.cluster.num_gpus, _count(args.get("n_gpus"))
    if had is not None and had != asked:
        problem = f"study {str(folder)!r} was of {had} GPUs, but cluster {job.cluster.name} has {asked}"
        raise UsageError(problem, hint="give the cluster that it ran on")
    gbs = job.global_batch or _count(args.get("gbs"))
    if gbs is None:
        raise UsageError(f"study {str(folder)!r} does not state its global batch", hint="give --gbs")
    return list(_runs(study, folder.name, job, gbs))


def _load(folder: Path) -> Json:
    path = folder / FILE_NAME
    try:
        study = json.loads(read_regular(path, MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        problem = f"a study must be a folder with {FILE_NAME}, but {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(problem, hint="give the folder of a finished study, OUTPUT_DIR/STUDY") from None
    except (ValueError, RecursionError):
        study = None
    trials = study.get("trials") if isinstance(study, dict) else None
    if not isinstance(trials, list) or not all(isinstance(trial, dict) for trial in trials):
        raise UsageError(f"{path} must be what a study writes, but is not", hint="give the folder of another study")
    return dict(study)


def _runs(study: Json, name: str, job: StudiedJob, gbs: int) -> Iterator[MeasuredRun]:
    for trial in study["trials"]:
        memory = _positive(trial.get("peak_memory_bytes"))
        yield MeasuredRun(
            source=f"study {name}",
            framework=job.framework,
            model=job.model,
            model_name=job.model.name,
            gpu=job.cluster.gpu.name,
            num_gpus=job.cluster.num_gpus,
            gpus_per_node=job.cluster.gpus_per_node,
            cluster=job.cluster,
            precision=job.precision,
            seq_len=job.seq_len,
            layout=_layout(trial, job, gbs),
            step_s=_positive(trial.get("step_s")) if trial.get("outcome") == "ok" else None,
            memory_bytes=memory,
            memory_kind="reserved" if memory else "",
            out_of_memory=trial.get("outcome") == "oom",
        )


def _layout(trial: Json, job: StudiedJob, gbs: int) -> dict[str, int | bool]:
    """Return the columns of a trial's layout, without dp where the trial does not record its sizes."""
    params = params if isinstance(params := trial.get("parameters"), dict) else {}
    sizes = {name: _count(params[name]) for name in SIZES if name in params}
    stated = {name: size for name, size in sizes.items() if size is not None}
    layout: dict[str, int | bool] = {**stated, "gbs": gbs, **_recompute(params), **_from_command(trial, job, stated)}
    split = stated.get("tp", 1) * stated.get("pp", 1) * stated.get("cp", 1)
    if stated and len(stated) == len(sizes) and job.cluster.num_gpus % split == 0:
        layout["dp"] = job.cluster.num_gpus // split
    return layout


def _recompute(params: Json) -> dict[str, int | bool]:
    if isinstance(stated := params.get("recompute"), str):
        kind = stated.rstrip("0123456789")
        return {"recompute": recompute_kind(kind, kind), "recompute_layers": _count(stated[len(kind) :]) or 0}
    granularity = str(params.get("recompute_granularity"))
    layers = (_count(params.get("recompute_num_layers")) or 1) if granularity == "full" else 0
    return {
        "recompute": recompute_kind(granularity, str(params.get("recompute_method"))),
        "recompute_layers": layers,
    }


def _from_command(trial: Json, job: StudiedJob, sizes: Mapping[str, int]) -> dict[str, int | bool]:
    """Return what the options of Megatron's own script state, or the usual values where a script hides them."""
    usual: dict[str, int | bool] = {"zero": 1, "sequence_parallel": sizes.get("tp", 1) > 1}
    try:
        line = ParsedCommand.of(str(trial.get("command") or ""))
        if not _PRETRAIN_SCRIPT.search(line.text):
            return usual
        chunks = _count(line.get("--num-virtual-stages-per-pipeline-rank"))
        per_chunk = _count(line.get("--num-layers-per-virtual-pipeline-stage"))
        if per_chunk:
            chunks = job.model.num_layers // (sizes.get("pp", 1) * per_chunk)
        return {
            "zero": int(line.has("--use-distributed-optimizer")),
            "sequence_parallel": line.has("--sequence-parallel"),
            "vp": chunks or 1,
        }
    except CommandError:
        return usual


def _count(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number > 0 else None


def _positive(value: Any) -> float | None:
    return value if isinstance(value, int | float) and 0 < value < math.inf else None
