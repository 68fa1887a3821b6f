"""The best layouts of a job, or the estimate of one, in a call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zenith_tune.api.plan_request import PlanRequest, compared, read_request
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.layouts.layout import Layout, layout_name
from zenith_tune.layouts.rules import broken_rules
from zenith_tune.planner.comparison import ClusterComparison
from zenith_tune.planner.cost import Prices
from zenith_tune.planner.limits import IMBALANCE, RISK
from zenith_tune.planner.plan import Plan, PlannedLayout


def plan(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    gbs: int,
    seq: int,
    gpus: int | None = None,
    top: int = 10,
    fix: Mapping[str, int | str] | str | None = None,
    framework: FrameworkSpec | str | None = None,
    lora: bool = False,
    qlora: bool = False,
    optimizer: str = "adam",
    offload: bool = False,
    reference: bool = False,
    precision: str = "bf16",
    dispatcher: str = "alltoall",
    imbalance: float = IMBALANCE,
    max_tp: int | None = None,
    max_pp: int | None = None,
    max_cp: int | None = None,
    max_mbs: int | None = None,
    space: str = "default",
    risk: float = RISK,
    topology: str | Path | None = None,
    calibration: Calibration | str | Path | None = None,
) -> Plan:
    """Rank every legal layout of a training job by its predicted step time, as `zenithtune plan` does.

    A kind of GPU without a number, such as "h100", is planned on the least number that a layout fits on.

    >>> found = plan("llama3-8b", "h100x8", gbs=64, seq=4096)
    >>> found.best[0].name, found.best[0].oom_probability < 0.3
    ('TP2 DP4 Z1 mbs2 SP', True)
    """
    request = read_request(
        model,
        cluster,
        gbs=gbs,
        seq=seq,
        gpus=gpus,
        framework=framework,
        lora=lora,
        qlora=qlora,
        optimizer=optimizer,
        offload=offload,
        reference=reference,
        precision=precision,
        dispatcher=dispatcher,
        imbalance=imbalance,
        fix=fix,
        max_sizes={"tp": max_tp, "pp": max_pp, "cp": max_cp, "mbs": max_mbs},
        space=space,
        risk=risk,
        topology=topology,
        calibration=calibration,
        takes_kind=True,
    )
    _warn(request)
    return request.planned(top=top).plan


def estimate(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    layout: Layout | str,
    *,
    gbs: int,
    seq: int,
    gpus: int | None = None,
    framework: FrameworkSpec | str | None = None,
    lora: bool = False,
    qlora: bool = False,
    optimizer: str = "adam",
    offload: bool = False,
    reference: bool = False,
    precision: str = "bf16",
    dispatcher: str = "alltoall",
    imbalance: float = IMBALANCE,
    topology: str | Path | None = None,
    calibration: Calibration | str | Path | None = None,
) -> PlannedLayout:
    """Predict step time, memory and risk of one layout; one that the framework refuses is an error that says why.

    >>> one = estimate("llama3-8b", "h100x8", "TP2 mbs1 SP Z1", gbs=64, seq=4096)
    >>> one.memory_bytes < one.capacity_bytes
    True
    """
    request = read_request(
        model,
        cluster,
        gbs=gbs,
        seq=seq,
        gpus=gpus,
        framework=framework,
        lora=lora,
        qlora=qlora,
        optimizer=optimizer,
        offload=offload,
        reference=reference,
        precision=precision,
        dispatcher=dispatcher,
        imbalance=imbalance,
        topology=topology,
        calibration=calibration,
    )
    _warn(request)
    chosen = request.layout(layout)
    for _, reason in broken_rules(request.model, request.job, chosen):
        raise UsageError(f"{request.model.name} cannot run as {layout_name(chosen)}, because {reason}")
    return request.planner().evaluate([chosen])[0]


def compare_clusters(
    model: ModelSpec | str | Path,
    clusters: Sequence[ClusterSpec | str | Path],
    *,
    tokens: float | str | None = None,
    price: Prices = None,
    **options: Any,
) -> ClusterComparison:
    """Plan one job on several clusters, as `zenithtune plan --compare` does; the options are those of `plan`.

    >>> found = compare_clusters("llama3-8b", ["h100x8", "b200x8"], gbs=64, seq=4096, tokens="1T")
    >>> found.fastest.cluster.name, [round(cost.price, 2) for cost in found.costs]
    ('b200x8', [3.85, 7.15])
    """
    requests = [read_request(model, cluster, takes_kind=True, **options) for cluster in clusters]
    for request in requests:
        _warn(request)
    return compared(requests, tokens=tokens, price=price)


def _warn(request: PlanRequest) -> None:
    if request.warning:
        warnings.warn(request.warning, stacklevel=3)
