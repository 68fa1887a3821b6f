"""A machine that differs from what the planner thinks of it: the truth that guided tuning has to find."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.step import estimate
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.strategies.base import TunedJob
from zenith_tune.strategies.guided.prior import Prior, prior_of
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Params, Value
from zenith_tune.study.trial import Outcome, Trial

GBS, GPUS = 64, 8
SPACE: dict[str, Parameter] = {
    "tp": CategoricalParameter([1, 2, 4, 8]),
    "pp": CategoricalParameter([1, 2, 4]),
    "mbs": CategoricalParameter([1, 2, 4, 8]),
    "recompute": CategoricalParameter(["none", "selective", "full/uniform"]),
}


def subject(model: str = "llama3-8b", framework: str = "megatron") -> PlanSubject:
    job = JobSpec(seq_len=4096, framework=load_framework(framework))
    return PlanSubject(model=load_model(model), cluster=load_cluster(f"h100x{GPUS}"), job=job)


def layout(params: Mapping[str, Value]) -> Layout:
    tp, recompute = int(params["tp"]), str(params["recompute"])
    return Layout(
        num_gpus=GPUS,
        tp=tp,
        pp=int(params["pp"]),
        micro_batch=int(params["mbs"]),
        global_batch=GBS,
        zero=1,
        recompute=recompute,
        recompute_layers=int(recompute.startswith("full")),
        sequence_parallel=tp > 1,
    )


def points() -> list[Params]:
    grid = itertools.product(*(parameter.grid(1) for parameter in SPACE.values()))
    every = [dict(zip(SPACE, values, strict=True)) for values in grid]
    return [point for point in every if GPUS % (int(point["tp"]) * int(point["pp"])) == 0]


def job(num_slots: int = 1) -> TunedJob:
    return TunedJob(subject=subject(), layout=layout, points=points, num_slots=num_slots)


def prior(calibration: Calibration | None = None) -> Prior:
    layouts = batch_of([layout(point) for point in points()])
    return prior_of(subject(), calibration or default_calibration("megatron"), layouts)


@dataclass(frozen=True, slots=True)
class World:
    """A machine unlike the calibration: factors of coefficients and memory, and noise for each layout."""

    factors: Mapping[str, float]
    memory: float = 1.0
    noise: float = 0.03
    seed: int = 0

    def trials(self) -> dict[int, Trial]:
        """Return the trial of every point, by its place."""
        known = default_calibration("megatron")
        names = known.time.coefficients
        changed = replace(names, **{name: getattr(names, name) * factor for name, factor in self.factors.items()})
        truth = replace(known, time=replace(known.time, coefficients=changed))
        every, about = points(), subject()
        found = estimate(about.model, about.cluster, about.job, batch_of([layout(point) for point in every]), truth)
        trials = {}
        for index, point in enumerate(every):
            # Recomputing more of one layout is more work: such layouts share their luck.
            cut = f"{self.seed} {point['tp']} {point['pp']} {point['mbs']}"
            luck = math.exp(random.Random(cut).gauss(0, self.noise))
            step_s = float(found.step_s[index]) * luck
            if float(found.memory_bytes[index]) * self.memory > about.cluster.gpu.memory_bytes:
                trials[index] = Trial(params=point, outcome=Outcome.OOM, duration_s=30.0)
                continue
            trials[index] = Trial(
                params=point,
                outcome=Outcome.OK,
                value=step_s,
                step_s=step_s,
                duration_s=60 + 15 * step_s,
                num_samples=15,
                spread=0.01,
            )
        return trials
