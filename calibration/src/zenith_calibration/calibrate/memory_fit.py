"""Fit the coefficients of the memory model to measured runs of one framework.

Three numbers are fitted: a factor for activations, one for logits, and fixed bytes. The rest follows from the
framework's code. Where runs may be of the framework's variant, each counts as the nearer of the two.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from zenith_tune.calibrate.measured_run import MeasuredRun, probed_ranks, stack_layouts
from zenith_tune.calibrate.robust_fit import folds, robust_fit
from zenith_tune.describe.framework_spec import FrameworkSpec, load_framework
from zenith_tune.describe.job_spec import JobSpec, is_narrow
from zenith_tune.estimates.calibration import NUM_QUANTILES, MemoryCoefficients
from zenith_tune.estimates.memory import estimate_memory, fullest_stage
from zenith_tune.estimates.workload import FloatArray, Workload
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch
from zenith_tune.units import GIB

MEASURED_ON = {"ultrascale_playbook": "first", "mcore_ci_golden": "last"}
"""The pipeline rank whose memory a source prints; other sources are taken to print the fullest.

nanotron logs on rank 0 of the world (helpers.py, log_throughput), Megatron's tensorboard writer is the last rank.
"""
LEFT_OUT = ("t5", "mimo", "hybrid", "multimodal-llava", "nemotron")
"""Folders of Megatron Core's tests with models other than plain decoders."""
UNFUSED_CONTAINER = re.compile(r"CI golden values lts\w*")
UNFUSED_UNTIL = re.compile(r"golden last changed \w+ 2025")


@dataclass(frozen=True, kw_only=True)
class MemoryRows:
    """Runs of one framework as arrays."""

    runs: list[MeasuredRun]
    framework: FrameworkSpec
    workload: Workload
    layouts: LayoutBatch

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun], framework: FrameworkSpec) -> Self:
        """Build the arrays of runs that are all `usable`."""
        workloads = [Workload.of(run.model, _job(run, framework)) for run in runs if run.model is not None]
        return cls(
            runs=list(runs),
            framework=framework,
            workload=Workload.stack(workloads),
            layouts=stack_layouts(map(layout_columns, runs)),
        )

    def take(self, chosen: BoolArray) -> Self:
        runs = [run for run, is_chosen in zip(self.runs, chosen, strict=True) if is_chosen]
        return replace(self, runs=runs, workload=self.workload.take(chosen), layouts=self.layouts.take(chosen))

    @functools.cached_property
    def measured_bytes(self) -> FloatArray:
        """The measured memory of each run; nan where there is none."""
        return np.array([run.memory_bytes or np.nan for run in self.runs])

    @functools.cached_property
    def variant(self) -> Self | None:
        """The same runs as those of the framework's variant, where it has one."""
        name = self.framework.variant
        return replace(self, framework=load_framework(name)) if name else None

    @functools.cached_property
    def _stages(self) -> tuple[FloatArray, BoolArray]:
        """The pipeline rank that each run's memory is of, and where that is the fullest one."""
        measured_on, probed = np.array([MEASURED_ON.get(run.source, "") for run in self.runs]), probed_ranks(self.runs)
        stage = np.where(measured_on == "last", self.layouts.pp - 1.0, 0.0)
        return np.where(np.isnan(probed), stage, probed), (measured_on == "") & np.isnan(probed)

    def printed(self, coefficients: MemoryCoefficients) -> FloatArray:
        """Estimate what each run's source printed: the allocated peak of the rank that it measured."""
        rows = (self.workload, self.layouts, self.framework, coefficients)
        stage, is_fullest = self._stages
        if is_fullest.any():
            stage = np.where(is_fullest, fullest_stage(*rows), stage)
        return estimate_memory(*rows, stage=stage).allocated_bytes


def _job(run: MeasuredRun, framework: FrameworkSpec) -> JobSpec:
    """Return the job of a run; NVIDIA's recipes keep weights in fp8, and so do Megatron Core's tests called native."""
    gathers_fp8 = run.source != "mcore_ci_golden" or "native_fp8" in run.model_name
    return JobSpec(seq_len=run.seq_len or 1, framework=framework, precision=run.precision, gathers_fp8=gathers_fp8)


def usable(run: MeasuredRun) -> bool:
    """Tell whether a run shows its memory, states enough for an estimate, and is a fair comparison."""
    if run.memory_bytes is None and not run.out_of_memory:
        return False
    stated = run.model is not None and run.seq_len and run.layout.get("mbs") and not run.flags
    return bool(stated) and run.model_name.partition("/")[0] not in LEFT_OUT


def layout_columns(run: MeasuredRun) -> dict[str, int | bool]:
    """Return the columns of a run's layout, with its framework's defaults for what its source leaves out.

    The test suite of Megatron Core runs on nodes of eight; its long-term container of 2025 had no deterministic flash
    attention. Experts are split by tp where nothing else is stated, and nanotron states its micro-batches.
    """
    columns = dict(run.layout)
    tp, split = columns.get("tp", 1), columns.get("tp", 1) * columns.get("pp", 1) * columns.get("cp", 1)
    columns.setdefault("dp", max((run.num_gpus or 8) // split, 1))
    columns.setdefault("gbs", columns["mbs"] * columns["dp"] * columns.get("pp", 1))
    if run.model is not None and run.model.num_experts and run.framework.startswith("megatron"):
        columns.setdefault("etp", tp)
    if steps := re.match(r"[0-9]+", run.notes.get("GradAcc", "")):
        columns["gbs"] = int(steps[0]) * columns["mbs"] * columns["dp"]
    if _is_unfused(run):
        columns["flash_attention"] = False
    return columns


def _is_unfused(run: MeasuredRun) -> bool:
    """Tell whether a test of Megatron Core's suite ran without flash attention, which its rows do not state.

    Its BERT tests, and its deterministic tests but those that resume a run, ask for --attention-backend unfused.
    """
    if run.framework != "megatron-ci" or "deterministic" not in run.notes:
        return False
    notes = " ".join(run.notes)
    old = UNFUSED_CONTAINER.search(notes) and UNFUSED_UNTIL.search(notes)
    small = "mcore" in run.model_name and run.layout.get("cp", 1) == 1
    return small and (bool(old) or "resume" not in run.model_name or run.model_name.startswith("bert"))


PRIOR_SCALE = np.array([0.2, 0.2, 0.3])
"""Expected change of the logarithms of both factors and of the fixed GiB."""
HUBER_SCALE = 0.03
LEAST_LANDSCAPES = 3
INNER_FOLDS = 5
"""Folds in which landscapes are left out to measure a fit's errors."""
APART = 0.1
"""Least logarithmic distance at which framework and variant count as different."""
LEAST_ERROR = 0.002
"""Half of the least interval, which the allocator's rounding alone explains."""


def fit_memory(runs: Sequence[MeasuredRun], framework: FrameworkSpec) -> MemoryCoefficients:
    """Return the coefficients fitted to `runs` of `framework`; the defaults where none of them states its memory.

    Runs of too few landscapes change only the errors.
    """
    # How weights and activations of 8 bits or fewer are kept, few runs state.
    found = [run for run in runs if run.memory_bytes and usable(run) and not is_narrow(run.precision)]
    if not found:
        return MemoryCoefficients()
    rows = MemoryRows.of(found, framework)
    places = [run.landscape for run in found]
    num_places = len(set(places))
    if num_places < LEAST_LANDSCAPES:
        start = MemoryCoefficients()
        return replace(start, log_errors=_quantiles(-_errors(rows, start), 1.0 + 1.0 / num_places))
    fitted = _fit(rows)
    held_out = np.empty(len(found))
    for fold in folds(places, INNER_FOLDS):
        held_out[fold] = -_errors(rows.take(fold), _fit(rows.take(~fold)))
    return replace(fitted, log_errors=_quantiles(held_out))


def _fit(rows: MemoryRows) -> MemoryCoefficients:
    """Return the coefficients without their errors."""
    start = MemoryCoefficients()

    def errors(theta: FloatArray) -> FloatArray:
        return _errors(rows, _coefficients(theta, start))

    theta = np.array([0.0, 0.0, start.fixed_bytes / GIB])
    fitted = _coefficients(robust_fit(errors, theta, prior_scale=PRIOR_SCALE, scale=HUBER_SCALE), start)
    middle = shortest_half(np.log(rows.measured_bytes / rows.printed(fitted)))
    here, there = _both_errors(rows, fitted)
    apart = np.abs(here - there) > APART
    variant_share = float((np.abs(there) < np.abs(here))[apart].mean()) if apart.any() else 0.0
    return replace(fitted, log_middle=middle, variant_share=variant_share)


def shortest_half(values: FloatArray) -> float:
    """Return the middle of the shortest interval that holds half of the values: the least median of squares.

    Rousseeuw, J. Am. Stat. Assoc. 79 (1984). It stays with the larger of two clusters, a median lies between.
    """
    ordered = np.sort(values)
    half = len(ordered) // 2 + 1
    widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
    start = int(widths.argmin())
    return float(ordered[start] + ordered[start + half - 1]) / 2.0


def _coefficients(theta: FloatArray, start: MemoryCoefficients) -> MemoryCoefficients:
    activations, logits = np.exp(theta[:2])
    return replace(start, activations=activations, logits=logits, fixed_bytes=np.maximum(theta[2], 0.0) * GIB)


def _errors(rows: MemoryRows, coefficients: MemoryCoefficients) -> FloatArray:
    """Return the logarithm of estimated over measured for the nearer of framework and variant."""
    here, there = _both_errors(rows, coefficients)
    return np.where(np.abs(here) <= np.abs(there), here, there)


def _both_errors(rows: MemoryRows, coefficients: MemoryCoefficients) -> tuple[FloatArray, FloatArray]:
    here = np.log(rows.printed(coefficients) / rows.measured_bytes)
    if rows.variant is None:
        return here, here
    return here, np.log(rows.variant.printed(coefficients) / rows.measured_bytes)


def _quantiles(errors: FloatArray, wider: float = 1.0) -> tuple[float, ...]:
    """Return evenly spaced quantiles, widened where runs are few."""
    levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    middle = np.median(errors)
    wider *= 1.0 + len(PRIOR_SCALE) / len(errors)
    widened = middle + (np.quantile(errors, levels) - middle) * wider
    least = LEAST_ERROR * (2.0 * levels - 1.0)
    return tuple(float(error) for error in widened + least)
