"""Judge the models of time and memory on runs that they were not fitted to: whole landscapes are left out in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from zenith_calibration.calibrate.framework_fits import families_of
from zenith_calibration.calibrate.memory_fit import MemoryRows, fit_memory, layout_columns, usable
from zenith_tune.calibrate.holdout import HeldOutSteps, held_out_steps, step_errors
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.robust_fit import folds, is_one_place
from zenith_tune.calibrate.time_family import TimeFamily
from zenith_tune.calibrate.time_fit import RunTable, TimeFit, unusable
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.gpu_catalog import find_gpu, gpu_spec
from zenith_tune.estimates.calibration import ERROR_SOURCES, MemoryCoefficients, TimeCalibration
from zenith_tune.estimates.memory_risk import MemoryRisk, layout_risk, memory_quantiles
from zenith_tune.estimates.workload import FloatArray, Number

MAX_FOLDS = 20
INTERVAL = (0.05, 0.95)
EVEN, CERTAIN = 0.5, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutMemory:
    """Hold what the model says of one run that it has not seen."""

    run: MeasuredRun
    predicted_bytes: float
    """The middle of the estimate, to compare with the run's own memory."""
    low_bytes: float
    high_bytes: float
    """The 90% interval."""
    fits_probability: float
    """That the fullest rank fits its GPU."""
    tight_probability: float
    """That it fits, and all but fills it."""
    device_bytes: float
    """What the fullest rank is estimated to need of its GPU."""
    cannot_run: str | None = None
    """The rule of the framework that forbids the layout whatever the memory."""

    @property
    def runs(self) -> bool:
        """Whether the run is expected to end well."""
        return self.cannot_run is None and self.fits_probability > EVEN

    @property
    def is_unexplained(self) -> bool:
        """Whether the run crashed although no rule forbids it and its memory fits with all but certainty."""
        return self.run.out_of_memory and self.cannot_run is None and self.fits_probability > CERTAIN


def hold_out_memory(
    fit_runs: Sequence[MeasuredRun], judge_runs: Sequence[MeasuredRun] | None = None
) -> list[HeldOutMemory]:
    """Predict `judge_runs` from a fit to `fit_runs`, or each landscape of `fit_runs` from a fit to the others."""
    judged = []
    for framework, fitted, held in _splits(fit_runs, judge_runs):
        judged += predict(held, fit_memory(fitted, load_framework(framework)), framework)
    return judged


def predict(runs: Sequence[MeasuredRun], coefficients: MemoryCoefficients, framework: str) -> list[HeldOutMemory]:
    """Predict runs of one framework."""
    if not runs:
        return []
    c, spec = coefficients, load_framework(framework)
    rows = MemoryRows.of(runs, spec)
    variant = replace(rows, framework=load_framework(spec.variant)) if spec.variant else None
    printed = rows.printed(c)
    low, high = memory_quantiles(printed, INTERVAL, c, variant.printed(c) if variant else None)
    usable_bytes = np.array([usable_memory(run) for run in runs])
    fullest, risk = layout_risk(rows.workload, rows.layouts, spec, c, usable_bytes)
    reasons = [forbidden(run) for run in runs]
    columns = (part.tolist() for part in (printed, low, high, 1.0 - risk.oom, risk.tight, fullest.device_bytes))
    names = tuple(field.name for field in fields(HeldOutMemory))
    return [HeldOutMemory(**dict(zip(names, row, strict=True))) for row in zip(runs, *columns, reasons, strict=True)]


def usable_memory(run: MeasuredRun) -> float:
    """Return what the driver reports as the memory of a run's GPU."""
    name = find_gpu(run.gpu)
    return float(gpu_spec(name).memory_bytes) if name else np.inf


def _splits(
    fit_runs: Sequence[MeasuredRun], judge_runs: Sequence[MeasuredRun] | None
) -> Iterator[tuple[str, list[MeasuredRun], list[MeasuredRun]]]:
    """Yield frameworks, the runs to fit and the runs to judge."""
    judge = fit_runs if judge_runs is None else judge_runs
    for framework, fitted in _by_framework(fit_runs).items():
        held = _by_framework(judge).get(framework, [])
        if judge_runs is not None:
            yield framework, fitted, held
            continue
        for fold in _folds(fitted):
            yield framework, [r for r in fitted if r.landscape not in fold], [r for r in fitted if r.landscape in fold]


def _by_framework(runs: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    found = sorted((run for run in runs if usable(run)), key=lambda run: run.framework)
    return {name: list(group) for name, group in groupby(found, key=lambda run: run.framework)}


def _folds(runs: Sequence[MeasuredRun]) -> list[set[tuple[str, str]]]:
    """Return sets of landscapes to leave out one after another: each alone, or in at most MAX_FOLDS sets."""
    landscapes = sorted({run.landscape for run in runs})
    step = min(len(landscapes), MAX_FOLDS)
    return [set(landscapes[start::step]) for start in range(step)]


def given_it_fits(risk: MemoryRisk) -> MemoryRisk:
    """Return the risk of layouts that are known to run."""
    fits = np.maximum(1.0 - risk.oom, 1e-12)
    return MemoryRisk(oom=np.zeros_like(risk.oom), tight=np.minimum(risk.tight / fits, 1.0))


def forbidden(run: MeasuredRun) -> str | None:
    """Return the rule of nanotron that a run breaks whatever its memory, or None.

    Of the crashed runs of the Ultra-Scale Playbook a fifth break one of the two; no run that ended well breaks either.
    """
    model = run.model
    if model is None or run.framework != "nanotron":
        return None
    layout = layout_columns(run)
    pp, micro_batches = layout.get("pp", 1), layout["gbs"] // (layout["mbs"] * layout["dp"])
    cost = float(model.attention_params + model.dense_mlp_params)
    if micro_batches < pp - 1:  # asserted by OneForwardOneBackwardPipelineEngine
        return f"micro-batches must be at least pp-1, but {micro_batches} < {pp - 1}"
    num_empty = int(empty_cost_stages(float(model.num_layers), cost, float(model.embedding_params), float(pp)))
    layers = f"{model.num_layers} layers dealt by cost"  # by build_model, which builds no stage without parameters
    return f"every stage must hold a block, but {layers} leave {num_empty} of {pp} stages empty" if num_empty else None


def empty_cost_stages(num_layers: Number, layer_cost: Number, head_cost: Number, pp: Number) -> FloatArray:
    """Return how many stages at the end get no block at all where blocks are dealt by cost.

    A block moves the walk on by one stage at most: a layer does where the cost so far exceeds the stage's share, the
    output layer and the cast of its logits do until the last stage is reached, and the loss comes last.

    >>> empty_cost_stages(16.0, 1.0, 4.0, np.array([8.0, 16.0, 32.0])).tolist()
    [0.0, 1.0, 12.0]
    """
    total = num_layers + head_cost / layer_cost
    reached = np.minimum(num_layers, np.ceil(num_layers * pp / total) - 1.0)
    by_norm = num_layers > total * (reached + 1.0) / pp
    result: FloatArray = np.maximum(np.asarray(pp) - 1.0 - (reached + by_norm + 2.0), 0.0)
    return result


@dataclass(frozen=True, slots=True)
class Judged:
    """Hold one run and what was predicted of it without having seen its landscape."""

    run: MeasuredRun
    predicted_s: float
    low_s: float
    high_s: float
    """Ends of the 90% interval."""
    shares: Mapping[str, float]
    """How far each of ERROR_SOURCES decides the step."""

    @property
    def error(self) -> float:
        """Relative error of the predicted speed: predicted over measured tokens/s, less 1."""
        return (self.run.step_s or np.nan) / self.predicted_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_s <= (self.run.step_s or np.nan) <= self.high_s


def decides(host_share: float, message_share: float) -> str:
    """Return what decides a step: the host, messages between ranks, or the GPU's own work."""
    return "host" if host_share > 0.5 else "messages" if message_share > 0.25 else "work"


def hold_out(
    runs: list[MeasuredRun],
    judge: list[MeasuredRun] | None = None,
    memory: Iterable[HeldOutMemory] = (),
) -> Iterator[tuple[TimeFamily, list[Judged]]]:
    """Judge the runs of `judge` by a fit to `runs`, or every landscape of `runs` by a fit to others of its family.

    `memory` is what was predicted of the memory of the same runs, likewise without their landscapes. Where a family has
    a single landscape, there is nothing to judge it by but other runs.
    """
    for family, members in families_of(runs):
        others = [] if judge is None else [run for run in judge if run.framework in family.frameworks]
        others = [run for run in others if unusable(run) is None]
        framework = load_framework(family.name)
        table = RunTable.of([*members, *others], framework)
        fit = TimeFit(family, table, framework, _device_bytes(table.runs, memory))
        places = table.landscapes[: len(members)]
        if not family.fitted or (judge is None and is_one_place(places)):
            continue
        known = [_padded(fold, len(table.runs)) for fold in folds(places)]
        yield family, _cross_validated(fit, known) if judge is None else _judged(fit, known, len(members))


def _padded(fold: npt.NDArray[np.bool_], size: int) -> npt.NDArray[np.bool_]:
    """Return a fold of the first runs of a table as one of all of them."""
    return np.concatenate([fold, np.zeros(size - len(fold), np.bool_)])


def _device_bytes(runs: list[MeasuredRun], memory: Iterable[HeldOutMemory]) -> FloatArray | None:
    known = {id(held.run): held.device_bytes for held in memory}
    return np.array([known.get(id(run), 0.0) for run in runs]) if known else None


def _cross_validated(fit: TimeFit, parts: list[npt.NDArray[np.bool_]]) -> list[Judged]:
    held, places = held_out_steps(fit, parts), fit.table.landscapes
    judged: dict[int, Judged] = {}
    for part in parts:
        errors = step_errors(held.of(~part), len({places[i] for i in np.flatnonzero(~part)}))
        judged |= {int(i): judged_run(fit.table.runs[i], held, int(i), errors) for i in np.flatnonzero(part)}
    return [judged[i] for i in sorted(judged)]


def _judged(fit: TimeFit, parts: list[npt.NDArray[np.bool_]], num_fitted: int) -> list[Judged]:
    """Judge the runs behind the first `num_fitted`, which alone are fitted to and give the interval."""
    ours = np.arange(num_fitted)
    num_places = len(set(fit.table.landscapes[:num_fitted]))
    errors = step_errors(held_out_steps(fit, parts, ours).of(ours), num_places)
    found = HeldOutSteps.of_estimate(fit, fit.estimate(fit.fit(ours)))
    return [judged_run(fit.table.runs[i], found, i, errors) for i in range(num_fitted, len(fit.table.runs))]


def judged_run(
    run: MeasuredRun, held: HeldOutSteps, row: int, errors: TimeCalibration, level_sd: float = 0.0
) -> Judged:
    """Judge one run by its row of the predictions, with the interval of `errors` and of its machine's level."""
    predicted_s, shares = float(held.step_s[row]), held.shares[:, row]
    ends = errors.ends(float(errors.widening(shares[:, None])[0]), level_sd)
    low, high = (predicted_s * float(np.exp(end)) for end in ends)
    return Judged(run, predicted_s, low, high, dict(zip(ERROR_SOURCES, shares.tolist(), strict=True)))
