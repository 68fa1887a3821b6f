"""Fit the coefficients of a family of frameworks to its measured step times."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from zenith_tune.calibrate.measured_run import MeasuredRun, probed_ranks, stack_layouts
from zenith_tune.calibrate.robust_fit import robust_fit
from zenith_tune.calibrate.time_family import Recipes, TimeFamily
from zenith_tune.describe.cluster_spec import ClusterSpec, precision_class
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.gpu_catalog import find_gpu, gpu_name, gpu_spec, node_fields
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.estimates.calibration import TimeCalibration, TimeCoefficients
from zenith_tune.estimates.memory_risk import slowdown
from zenith_tune.estimates.time import TimeEstimate, estimate_time, stage_time
from zenith_tune.estimates.workload import FloatArray, Machine, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

FINE_TUNING = re.compile(r"\b(sft|lora|peft|fine-?tun)", re.IGNORECASE)
"""Start of a word in the name or the notes of a fine-tuning run, whose samples or trained weights are others."""


@dataclass(frozen=True, slots=True)
class RunTable:
    """Runs with the arrays that the estimates need."""

    runs: list[MeasuredRun]
    workload: Workload
    machine: Machine
    layouts: LayoutBatch
    step_s: FloatArray
    """Measured step time; nan where there is none."""
    probed_stage: FloatArray
    """The pipeline rank that was run alone; nan for a whole run."""

    @classmethod
    def of(cls, runs: list[MeasuredRun], framework: FrameworkSpec) -> RunTable:
        """Build the table of runs that are all `usable`."""
        models = [run.model for run in runs if run.model is not None]
        jobs = [
            JobSpec(seq_len=run.seq_len or 0, framework=framework, precision=run.precision, dispatcher=run.dispatcher)
            for run in runs
        ]
        return cls(
            runs=runs,
            workload=Workload.stack([Workload.of(model, job) for model, job in zip(models, jobs, strict=True)]),
            machine=Machine.stack([Machine.of(run_cluster(run), run.precision) for run in runs]),
            layouts=stack_layouts(with_default_batch(run).layout for run in runs),
            step_s=np.array([run.step_s or np.nan for run in runs]),
            probed_stage=probed_ranks(runs),
        )

    @property
    def landscapes(self) -> list[tuple[str, str]]:
        return [run.landscape for run in self.runs]


def run_cluster(run: MeasuredRun) -> ClusterSpec:
    """Return the cluster that a run was measured on."""
    return run.cluster or sized_cluster(run.gpu, run.num_gpus or 1, run.gpus_per_node)


def sized_cluster(gpu: str, num_gpus: int, gpus_per_node: int | None = None) -> ClusterSpec:
    """Return so many of the catalog's GPUs, also where they do not fill its nodes."""
    name = gpu_name(gpu)
    fields = node_fields(name)
    fields["gpus_per_node"] = gpus_per_node or fields["gpus_per_node"]
    domain = fields["fast_domain"]
    fields["fast_domain"] = max(size for size in range(1, min(domain, num_gpus) + 1) if num_gpus % size == 0)
    return ClusterSpec(name=f"{name}x{num_gpus}", gpu=gpu_spec(name), num_gpus=num_gpus, **fields)


def unusable(run: MeasuredRun) -> str | None:
    """Return why the speed of a run cannot be used, or None."""
    layout = run.layout
    if run.out_of_memory or not run.step_s:
        return "no speed measured"
    if run.flags:
        return "marked by its source: " + ", ".join(run.flags)
    if run.model is None:
        return "shape of the model not stated"
    if not run.num_gpus or not run.seq_len:
        return "number of GPUs or sequence length not stated"
    if any(FINE_TUNING.search(text) for text in (run.model_name, *run.notes)):
        return "fine-tuning"
    if run.framework == "jax":
        return "a framework that is not modelled"
    if "dp" not in layout or not (layout.keys() & {"gbs", "mbs"}):
        return "layout not stated"
    if layout.get("ep", 1) > 1 and not run.model.num_experts:
        return "experts split in a model that has none"
    if "mbs" not in layout and run.model.num_experts:
        return "micro-batch not stated, which decides the experts' share of tokens"
    if layout.get("gbs", layout.get("mbs", 1)) % (layout.get("mbs", 1) * layout["dp"]):
        return "batch does not divide"
    if layout.get("ep", 1) * layout.get("etp", 1) > run.num_gpus:
        return "more expert ranks than GPUs"
    known = run.cluster is not None or find_gpu(run.gpu) is not None
    return None if known else f"GPU {run.gpu} not in the catalog"


def unusable_by(family: TimeFamily, run: MeasuredRun) -> str | None:
    """Return why the speed of a run cannot be used for a family, or None."""
    if run.framework not in family.frameworks:
        return f"of another framework: {run.framework}"
    if not family.fitted:
        return f"speed of {run.framework} is not fitted"
    return unusable(with_default_batch(run))


def with_default_batch(run: MeasuredRun) -> MeasuredRun:
    """Return the run with a global batch without accumulation where none is stated."""
    layout = dict(run.layout)
    layout.setdefault("gbs", layout.get("mbs", 1) * layout.get("dp", 1))
    return replace(run, layout=layout)


RELEASE = 2026.0
"""The release, as a year, at which trends are zero."""
SOURCE, RECIPES = "source:", "recipes"
SCALE = 0.08
"""Logarithmic error beyond which errors count by their size only: some rows state wrong settings."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A deviation of some runs: their coefficient is multiplied by exp(theta * share)."""

    kind: str
    coefficient: str
    share: FloatArray
    prior: float
    start: float = 0.0
    """Initial theta, from an earlier calibration."""


class TimeFit:
    """A fit of one family to a table of its runs."""

    def __init__(
        self,
        family: TimeFamily,
        table: RunTable,
        framework: FrameworkSpec,
        device_bytes: FloatArray | None = None,
        start: TimeCalibration | None = None,
    ) -> None:
        """Prepare a fit.

        `device_bytes` is the estimated memory of each run, 0 where it is unknown. `start` is an earlier calibration to
        refine, instead of the family's own start.
        """
        self.family, self.table, self.framework = family, table, framework
        self.device_bytes = device_bytes
        self.origin = start or TimeCalibration(coefficients=family.start, release=RELEASE)
        self.names = tuple(family.fitted)
        self.factors = _factors(family, table, self.origin)
        base = self.origin.coefficients.to_vector(self.names)
        self.start = np.concatenate([base, [factor.start for factor in self.factors]])
        priors = [*family.fitted.values(), *(factor.prior for factor in self.factors)]
        self.prior_scale = np.array(priors)

    def fit(self, rows: npt.NDArray[np.intp] | None = None) -> FloatArray:
        """Return the vector of coefficients and factors fitted to `rows`, or to all."""
        index = np.arange(len(self.table.runs)) if rows is None else rows
        measured = np.log(self.table.step_s[index])
        return robust_fit(
            lambda theta: np.log(self.predict(theta)[..., index]) - measured,
            self.start,
            prior_scale=self.prior_scale,
            scale=SCALE,
        )

    def predict(self, theta: FloatArray) -> FloatArray:
        """Return the step time of every run of the table; a row for each of k vectors that are columns of (k, 1)."""
        return self.estimate(theta).step_s

    def estimate(self, theta: FloatArray) -> TimeEstimate:
        table, coefficients = self.table, self._coefficients(theta)
        work = (table.workload, table.machine, table.layouts, self.framework, coefficients)
        found = estimate_time(*work)
        if not np.isnan(table.probed_stage).all():
            # A probed rank had nothing to wait for: only its own work was measured.
            found = _chosen(table.probed_stage, found, stage_time(*work, np.nan_to_num(table.probed_stage)))
        if self.device_bytes is None:
            return found
        longer = slowdown(self.device_bytes, table.machine.memory_bytes, coefficients.thrash)
        return replace(found, step_s=found.step_s * longer)

    def calibration(self, theta: FloatArray) -> TimeCalibration:
        kept = {kind: dict(values) for kind, values in self.origin.factors.items()}
        factors: dict[str, dict[str, float]] = defaultdict(dict, kept)
        trends = dict(self.origin.trends)
        for factor, value in zip(self.factors, theta[len(self.names) :], strict=True):
            if factor.kind == RECIPES or factor.kind.startswith(SOURCE):  # no job but their own has these
                continue
            if factor.kind == "release":
                trends[factor.coefficient] = float(value)
            else:
                factors[factor.kind][factor.coefficient] = float(np.exp(value))
        first = f"framework:{self.family.frameworks[0]}"
        factors.update({f"framework:{name}": dict(factors[first]) for name in self.family.alike})
        # A pool's factors multiply those of each of its GPUs, measured or not.
        for pool, members in self.family.pools:
            for name, value in factors.pop(f"pool:{pool}", {}).items():
                for gpu in members:
                    factors[f"gpu:{gpu}"][name] = factors[f"gpu:{gpu}"].get(name, 1.0) * value
        base = self.origin.coefficients.with_vector(self.names, theta[: len(self.names)])
        return TimeCalibration(coefficients=base, factors=dict(factors), trends=trends, release=self.origin.release)

    def _coefficients(self, theta: FloatArray) -> TimeCoefficients:
        base = self.origin.coefficients.with_vector(self.names, theta[: len(self.names)])
        logs: dict[str, FloatArray | float] = defaultdict(float)
        for factor, value in zip(self.factors, theta[len(self.names) :], strict=True):
            logs[factor.coefficient] = logs[factor.coefficient] + value * factor.share
        return replace(base, **{name: getattr(base, name) * np.exp(log) for name, log in logs.items()})


def _chosen(probed_stage: FloatArray, whole: TimeEstimate, alone: TimeEstimate) -> TimeEstimate:
    """Return the estimate of the whole step of each run, or of the rank that ran alone."""
    is_whole = np.isnan(probed_stage)
    parts = {name: np.where(is_whole, part, alone.parts.get(name, 0.0)) for name, part in whole.parts.items()}
    step_s = np.where(is_whole, whole.step_s, alone.step_s)
    host_share = np.where(is_whole, whole.host_share, alone.host_share)
    return TimeEstimate(step_s, parts, host_share, whole.expert_share)


def _factors(family: TimeFamily, table: RunTable, origin: TimeCalibration) -> list[Factor]:
    runs, prior = table.runs, family.factor_prior
    found = []
    for pool, members in family.pools:
        share = np.array([run.gpu in members for run in runs]) * 1.0
        found += [Factor(f"pool:{pool}", name, share, prior) for name in family.by_gpu]
    for gpu in sorted({run.gpu for run in runs}):
        share, kind = np.array([run.gpu == gpu for run in runs]) * 1.0, f"gpu:{gpu}"
        # Those of the most similar known GPU where this one is new.
        known = origin.coefficients_for(gpu=gpu, precision="bf16", framework="")
        for name in family.by_gpu:
            start = float(np.log(getattr(known, name) / getattr(origin.coefficients, name)))
            found.append(Factor(kind, name, share, family.gpu_prior, start))
    for precision in sorted({precision_class(run.precision) for run in runs} - {"bf16"}):
        share = np.array([precision_class(run.precision) == precision for run in runs]) * 1.0
        names = ("gemm_efficiency", *({"expert_efficiency"} & family.fitted.keys()))
        found += [_factor_of(f"precision:{precision}", name, share, prior, origin) for name in names]
    for recipes in family.recipes:
        share = np.array([_follows(run, recipes) for run in runs]) * 1.0
        found += [Factor(RECIPES, name, share, recipes.prior) for name in recipes.coefficients]
    for name in (each for each in family.frameworks if len(family.frameworks) > 1 and each not in family.alike):
        members = (name, *family.alike) if name == family.frameworks[0] else (name,)
        share = np.array([run.framework in members for run in runs]) * 1.0
        found.append(_factor_of(f"framework:{name}", "gemm_efficiency", share, prior, origin))
    sources = sorted({run.author for run in runs})
    for source in sources if len(sources) > 1 else ():
        share = np.array([run.author == source for run in runs]) * 1.0
        found += [Factor(f"{SOURCE}{source}", name, share, family.source_prior) for name in family.by_source]
    years = np.array([run.release or origin.release for run in runs]) - origin.release
    trends = ((name, origin.trends.get(name, 0.0)) for name in family.by_release)
    return found + [Factor("release", name, years, family.trend_prior, slope) for name, slope in trends]


def _follows(run: MeasuredRun, recipes: Recipes) -> bool:
    is_new = run.release is not None and run.release >= recipes.since
    is_for = run.gpu in recipes.gpus and precision_class(run.precision) == recipes.precision
    return is_new and is_for and run.model is not None and run.model.num_experts > 0


def _factor_of(kind: str, coefficient: str, share: FloatArray, prior: float, origin: TimeCalibration) -> Factor:
    start = float(np.log(origin.factors.get(kind, {}).get(coefficient, 1.0)))
    return Factor(kind, coefficient, share, prior, start)
