"""Rates from what runs have measured of their own steps: least squares on a few physical numbers, with priors."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.mimo.measured_step import LinkTime, MeasuredStep, TimedPass
from zenith_tune.mimo.module_layout import LANGUAGE
from zenith_tune.mimo.module_work import ModuleWork, stage_layers
from zenith_tune.planner.mimo.candidate import ENCODER, MAX_TP, MimoCandidate
from zenith_tune.planner.mimo.job import PARTS, Line, MimoJob, MimoRates, ModuleRates
from zenith_tune.planner.mimo.prediction import rank_parameters

TENSOR_DEGREES = range(1, MAX_TP + 1)
NUM_AGREEMENTS = 4
"""Sums of one number over the world at the end of a step."""
SUMS = {"first": (1, 0), "layer": (2, 2), "last": (1, 1)}
"""Sums over a tensor-parallel group in each part, forward and backward."""

Points = dict[tuple[str, bool, int], list[tuple[float, float, int]]]
"""By part, direction and tp: units, seconds, how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout:
    """Hold what a run of a layout told."""

    at: MimoCandidate
    step: MeasuredStep


def fit_rates(job: MimoJob, runs: Sequence[MeasuredLayout]) -> MimoRates | None:
    """Return the rates that runs show; None as long as one of the modules was not seen."""
    points = {name: _points(job, runs, name) for name in (ENCODER, LANGUAGE)}
    if not all(points.values()):
        return None
    sums = _links([link for run in runs for link in run.step.sums])
    messages = _links([link for run in runs for link in run.step.messages])
    lines = {name: _direct_lines(points[name]) for name in points}
    # Blocks of both modules are made of the same operations: what one costs however small it is holds for both.
    _borrow_fixed(lines, points)
    agree_s = NUM_AGREEMENTS * sums[job.num_ranks].fixed_s if job.num_ranks in sums else 0.0
    param_s, layer_s = _end_rates(job, runs, agree_s)
    return MimoRates(
        encoder=ModuleRates(parts=_all_degrees(job.encoder, lines[ENCODER], sums, job.device.number_bytes)),
        language=ModuleRates(parts=_all_degrees(job.language, lines[LANGUAGE], sums, job.device.number_bytes)),
        message=messages.get(2, Line(0.0, 0.0)),
        sums=sums,
        agree_s=agree_s,
        param_s=param_s,
        layer_s=layer_s,
        sync_byte_s=_sync_rate(job, runs),
    )


def _points(job: MimoJob, runs: Sequence[MeasuredLayout], name: str) -> Points:
    work = job.language if name == LANGUAGE else job.encoder
    found: Points = defaultdict(list)
    for run in runs:
        for each in run.step.passes:
            key = each.key
            if (key.module == "llm") != (name == LANGUAGE) or (key.tp > 1 and not key.units):
                continue
            for part, seconds in _seconds_by_part(work, each).items():
                found[part, key.is_backward, key.tp].append((key.units, seconds, each.count))
    return found


def _seconds_by_part(work: ModuleWork, each: TimedPass) -> dict[str, float]:
    num_layers = len(stage_layers(work.num_layers, each.key.stage, each.key.pp))
    parts = {"layer": each.blocks_s / num_layers}
    if each.key.stage == 0:
        parts["first"] = each.first_s
    if each.key.stage == each.key.pp - 1:
        parts["last"] = each.last_s
    return parts


def _direct_lines(points: Points) -> dict[tuple[str, bool, int], Line]:
    return {key: _line(values) for key, values in points.items()}


def _line(values: Sequence[tuple[float, float, int]], fixed_s: float | None = None) -> Line:
    """Fit a line, relative errors alike; neither number may be below 0."""
    units = np.array([value[0] for value in values])
    seconds = np.array([max(value[1], 1e-9) for value in values])
    weights = np.sqrt([value[2] for value in values]) / seconds
    if fixed_s is None and len(set(units.tolist())) > 1:
        matrix = np.stack([np.ones_like(units), units], axis=1) * weights[:, None]
        fixed, each = np.linalg.lstsq(matrix, seconds * weights, rcond=None)[0]
        if each < 0:
            return Line(float(np.average(seconds, weights=weights)), 0.0)
        if fixed >= 0:
            return Line(float(fixed), float(each))
    known = min(fixed_s or 0.0, float(seconds.min()))
    if not units.any():
        return Line(float(seconds.mean()), 0.0)
    square = float(((units * weights) ** 2).sum())
    return Line(known, float(((seconds - known) * units * weights**2).sum()) / square)


def _borrow_fixed(lines: dict[str, dict[tuple[str, bool, int], Line]], points: Mapping[str, Points]) -> None:
    for name, other in ((ENCODER, LANGUAGE), (LANGUAGE, ENCODER)):
        for key, values in points[name].items():
            alone = len({value[0] for value in values}) == 1
            lender = lines[other].get(key)
            lends = key[0] == "layer" and lender is not None and len({value[0] for value in points[other][key]}) > 1
            if alone and lends and lender is not None:
                lines[name][key] = _line(values, lender.fixed_s)


def _all_degrees(
    work: ModuleWork, known: Mapping[tuple[str, bool, int], Line], sums: Mapping[int, Line], number_bytes: int
) -> dict[tuple[str, bool, int], Line]:
    """Fill in the degrees that no run had from the nearest that one had: its arithmetic's share, and its sums."""
    parts = {"first": work.first, "layer": work.layer, "last": work.last}
    found = {}
    for part in PARTS:
        for is_backward in (False, True):
            degrees = sorted(tp for name, back, tp in known if (name, back) == (part, is_backward))
            for tp in TENSOR_DEGREES:
                nearest = min(degrees, key=lambda degree: (abs(math.log2(degree / tp)), degree), default=None)
                if nearest is None:
                    found[part, is_backward, tp] = Line(0.0, 0.0)
                    continue
                line = known[part, is_backward, nearest]
                here, there = (_sum_line(work, sums, degree, number_bytes) for degree in (tp, nearest))
                count = SUMS[part][is_backward]
                flops = parts[part].flops(nearest)
                share = parts[part].flops(tp) / flops if flops else 1.0
                found[part, is_backward, tp] = Line(
                    max(line.fixed_s - count * there.fixed_s, 0.2 * line.fixed_s) + count * here.fixed_s
                    if tp != nearest
                    else line.fixed_s,
                    max(line.each_s - count * there.each_s, 0.2 * line.each_s) * share + count * here.each_s
                    if tp != nearest
                    else line.each_s,
                )
    return found


def _sum_line(work: ModuleWork, sums: Mapping[int, Line], tp: int, number_bytes: int) -> Line:
    """Return a sum's time by units; between the sizes that were tried a logarithm leads."""
    if tp == 1 or not sums:
        return Line(0.0, 0.0)
    nearest = min(sums, key=lambda size: abs(math.log2(size / tp)))
    scale = math.log2(tp) / math.log2(nearest)
    return Line(sums[nearest].fixed_s * scale, sums[nearest].each_s * scale * work.hidden_numbers * number_bytes)


def _links(times: Sequence[LinkTime]) -> dict[int, Line]:
    """Return the time of messages or sums by ranks: the smallest shows the latency, the largest the bandwidth."""
    found = {}
    for size in {each.num_ranks for each in times}:
        by_bytes: dict[float, list[float]] = defaultdict(list)
        for each in times:
            if each.num_ranks == size:
                by_bytes[each.num_bytes].append(each.seconds)
        small, large = min(by_bytes), max(by_bytes)
        fixed_s, large_s = statistics.median(by_bytes[small]), statistics.median(by_bytes[large])
        each_s = max(large_s - fixed_s, 0.0) / (large - small) if large > small else 0.0
        found[size] = Line(fixed_s, each_s)
    return found


def _end_rates(job: MimoJob, runs: Sequence[MeasuredLayout], agree_s: float) -> tuple[float, float]:
    """Return the seconds of the optimizer by parameter and by layer; its slowest rank sets the end."""
    rows, ends = [], []
    for run in runs:
        if run.step.end_s > agree_s:
            params, layers = max(
                tuple(map(sum, zip(*rank.values(), strict=True))) for rank in rank_parameters(job, run.at)
            )
            rows.append((params, layers))
            ends.append(run.step.end_s - agree_s)
    if not rows:
        return 0.0, 0.0
    matrix, known = np.array(rows, dtype=float), np.array(ends)
    # A layer's tensors cost about as much as 30 000 parameters; runs of one size cannot tell the two apart.
    scale = float((known / (matrix[:, 0] + 30_000 * matrix[:, 1])).mean())
    prior = np.array([scale, 30_000 * scale])
    left = known - matrix @ prior
    wide = np.concatenate([matrix * prior / known[:, None], np.eye(2) * 0.3])
    moved = np.linalg.lstsq(wide, np.concatenate([left / known, np.zeros(2)]), rcond=None)[0]
    param_s, layer_s = prior * np.maximum(1 + moved, 0.0)
    return float(param_s), float(layer_s)


def _sync_rate(job: MimoJob, runs: Sequence[MeasuredLayout]) -> float:
    """Return the seconds of summing one byte of gradients over two replicas."""
    total_s = total = 0.0
    for run in runs:
        if not run.at.is_colocated:
            continue
        (rank,) = rank_parameters(job, run.at)
        for name, module in ((ENCODER, run.at.encoder), (LANGUAGE, run.at.language)):
            if module.dp > 1:
                total += rank[name][0] * job.device.number_bytes * (0.5 + (module.dp - 1) / module.dp)
        total_s += run.step.sync_s
    return total_s / total if total else 0.0


def with_rates(job: MimoJob, rates: MimoRates) -> MimoJob:
    """Return the job on devices of which this was measured."""
    link = LinkSpec(bytes_per_s=1 / max(rates.message.each_s, 1e-15), latency_s=rates.message.fixed_s)
    return replace(job, device=replace(job.device, rates=rates, link=link))
