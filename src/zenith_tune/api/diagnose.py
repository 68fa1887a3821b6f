"""What limits a run, and what to change, in a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.topology import read_topology, tensor_reason, with_topology
from zenith_tune.doctor.diagnosed_run import RunHints, UnplannedRun
from zenith_tune.doctor.studied_run import find_run
from zenith_tune.planner.limits import RISK
from zenith_tune.registry import parse_pairs

if TYPE_CHECKING:
    from zenith_tune.api.run_diagnosis import RunDiagnosis
    from zenith_tune.estimates.calibration import Calibration

PUBLISHED = "published"
"""What a run can be held against: the published runs of the catalog."""


def diagnose(
    target: str | Path | None = None,
    *,
    command: str | None = None,
    model: str | None = None,
    cluster: str | None = None,
    topology: str | Path | None = None,
    preset: str | None = None,
    args: Mapping[str, Any] | str | None = None,
    risk: float = RISK,
    calibration: Calibration | str | Path | None = None,
    db: str | None = None,
    output_dir: str | Path | None = None,
    against: str | Path | None = None,
) -> RunDiagnosis:
    """Name what limits a run and the change that helps, as `zenithtune doctor` does.

    `target` is a study's name or folder, or a log; a `command` alone is diagnosed by its plan. `against` also says
    why it is slower than another run: "published" for the nearest published one, or a study or a log of your own,
    "LOG -- COMMAND" where the log does not show its command.

    >>> launched = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048"
    >>> options = "--num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096"
    >>> batch = "--micro-batch-size 1 --global-batch-size 32 --vocab-size 32000 --bf16"
    >>> found = diagnose(command=f"{launched} {options} {batch}", cluster="h100x8")
    >>> found.is_sound, found.advice[0].gain > 0
    (True, True)
    """
    linked = read_topology(Path(topology)) if topology is not None else None
    pairs = parse_pairs(args, "--args") if isinstance(args, str) else dict(args or {})
    named = {"model": model} if model is not None else {}
    hints = RunHints(preset=preset, args={**pairs, **named}, cluster=cluster)
    where = Path(output_dir) if output_dir is not None else None
    run = find_run(Path(target) if target is not None else None, command, hints, db=db, output_dir=where)
    other = None
    if against not in (None, PUBLISHED):
        place, _, its_command = str(against).partition(" -- ")
        other = find_run(Path(place), its_command or None, hints, db=db, output_dir=where)
    # Not before: a mistake is reported without the planner.
    from zenith_tune.api.run_diagnosis import RunDiagnosis
    from zenith_tune.calibrate.calibration_file import load_calibration
    from zenith_tune.doctor.diagnosis import diagnose_run
    from zenith_tune.doctor.published_gap import NotCompared, SpeedGap, own_gap, published_gap

    if isinstance(run, UnplannedRun):
        unplanned = NotCompared(reason="the run is not planned") if against else None
        return RunDiagnosis(what=run.what, found=run, gap=unplanned)
    reason = ""
    if linked is not None and topology is not None:
        machines = with_topology(run.subject.cluster, linked, Path(topology).name)
        origin = replace(run.origin, topology=str(topology))
        run = replace(run, subject=replace(run.subject, cluster=machines), origin=origin)
        reason = tensor_reason(machines, linked)
    fitted = load_calibration(Path(calibration)) if isinstance(calibration, str | Path) else calibration
    found = diagnose_run(run, risk=risk, calibration=fitted)
    fewer = _fewer_gpus(str(hints.all_args.get("cluster") or ""), run.subject.cluster.num_gpus)
    gap: SpeedGap | NotCompared | None = None
    if isinstance(other, UnplannedRun):
        gap = NotCompared(reason=other.reason)
    elif other is not None:
        gap = own_gap(found.run, run.levers, other)
    elif against:
        gap = published_gap(found.run, run.levers)
    return RunDiagnosis(what=run.what, found=found, tensor_reason=reason, cluster_reason=fewer, gap=gap)


def _fewer_gpus(named: str, num_gpus: int) -> str:
    """Return that a run takes fewer GPUs than the cluster that the user named has; empty where it does not."""
    if not named or (all_gpus := load_cluster(named).num_gpus) <= num_gpus:
        return ""
    return f"{named} has {all_gpus} GPUs, but the run starts {num_gpus}, which it is planned for (--nnodes says more)"
