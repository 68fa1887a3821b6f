"""From model, cluster and job to ranked layouts: candidates stream through the estimate, and the best are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.memory import estimate_memory
from zenith_tune.estimates.memory_risk import layout_risk, memory_quantiles
from zenith_tune.estimates.model_flops import flops_per_token
from zenith_tune.estimates.routing import busiest_rank
from zenith_tune.estimates.step import estimate, time_with_room
from zenith_tune.estimates.workload import Estimate, FloatArray, Workload
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import RECOMPUTE_BLOCK, LayoutBatch, batch_of, layout_at
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.layouts.rules import broken_rules
from zenith_tune.layouts.search_space import SearchSpace, limits_of
from zenith_tune.planner.best_layouts import BestLayouts, Front, tied_within
from zenith_tune.planner.explanation import Explanation, StageMemory, better_steps
from zenith_tune.planner.infeasible import DeadEnd
from zenith_tune.planner.limits import MAX_SEQ
from zenith_tune.planner.limits import RISK as RISK
from zenith_tune.planner.neighbours import batch_misses, memory_misses, memory_reason, neighbours
from zenith_tune.planner.plan import PRESSURE, NearMiss, Plan, PlannedLayout, halvings, thinned, unbeaten
from zenith_tune.planner.what_if import WhatIf, changed, parse_changes, resized
from zenith_tune.units import count

AT_A_TIME = 16_384
"""Layouts estimated at a time, in order of speed, before checking whether they are enough."""
NUM_NEAR_MISSES = 3


@dataclass(slots=True, kw_only=True)
class Search:
    """The best layouts so far, by several measures."""

    best: BestLayouts
    too_large: BestLayouts = field(default_factory=lambda: BestLayouts(NUM_NEAR_MISSES))
    """The fastest that narrowly do not fit."""
    smallest: BestLayouts = field(default_factory=lambda: BestLayouts(1))
    """The layout that needs the least memory, fitting or not."""
    front: Front = field(default_factory=Front)
    num_considered: int = 0
    num_not_fitting: int = 0


INTERVAL = (0.05, 0.95)
"""Quantiles that enclose 90% of measurements."""
NEAR_MEMORY = 1.25
"""Ratio of needed memory to a GPU's up to which a layout is a near miss."""
MAX_DOUBLINGS = 4
"""Number of times the GPUs are doubled in search of enough of them."""
LEAST_STATES = 0.75
"""Share of the estimated states that GPUs must hold to be tried: estimates are off by less."""
LEAST_SEQ = 128


class Planner:
    """The layouts of one job on one cluster, ranked.

    The rank is by the expected step over the errors of memory (`expected_step`), the simpler layout first where two tie
    (`tied_within`). A layout fits if its probability of running out of memory is below `risk`.
    """

    def __init__(
        self,
        model: ModelSpec | str,
        cluster: ClusterSpec | str,
        job: JobSpec,
        calibration: Calibration | str | Path | None = None,
    ) -> None:
        self.model = load_model(model) if isinstance(model, str) else model
        self.cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
        self.job = job
        fitted = load_calibration(Path(calibration)) if isinstance(calibration, str | Path) else calibration
        self.calibration = fitted or default_calibration(job.framework.name)

    def __repr__(self) -> str:
        return f"Planner({self.model.name} on {self.cluster.name}, seq {self.job.seq_len}, {self.job.framework.name})"

    def plan(self, global_batch: int, *, top: int = 10, space: SearchSpace | None = None, risk: float = RISK) -> Plan:
        """Return the best layouts, what was dropped and why, and what nearly made it."""
        space = space or SearchSpace()
        num_gpus = self.cluster.num_gpus
        dead_end = DeadEnd(model=self.model, job=self.job, num_gpus=num_gpus, global_batch=global_batch, space=space)
        dead_end.refuse()
        candidates = Candidates(self.model, self.job, num_gpus, global_batch, space)
        if not candidates.count:
            raise dead_end.error()
        tied = tied_within(self.calibration)
        search = Search(best=BestLayouts(max(top, 1), tied))
        for piece in candidates.batches():
            self._look(search, piece, risk)
        self._refine(search, space, risk)
        best = self.evaluate_batch(search.best.layouts)
        return Plan(
            model=self.model,
            cluster=self.cluster,
            job=self.job,
            global_batch=global_batch,
            risk=risk,
            best=tuple(best[:top]),
            num_tied=min(search.best.num_tied, top),
            tied_within=tied,
            level=self._level(),
            near_misses=tuple(self._near_misses(search, candidates, best[0] if best else None, space, risk)),
            front=tuple(self.evaluate_batch(search.front.layouts)),
            num_considered=search.num_considered,
            num_not_fitting=search.num_not_fitting,
            cuts=tuple(candidates.cuts),
            left_out=tuple(
                space.left_out(
                    has_experts=bool(self.model.num_experts),
                    layout_strings=limits_of(self.job.framework.name).layout_strings,
                )
            ),
        )

    def fastest(
        self,
        global_batch: int,
        accepts: Callable[[PlannedLayout], bool],
        *,
        at_most_s: float = math.inf,
        top: int = 10,
        space: SearchSpace | None = None,
        risk: float = RISK,
    ) -> list[PlannedLayout]:
        """Return the fastest layouts that fit and are accepted, without the rest of a plan; none above `at_most_s`.

        Layouts are estimated in the order of their time with memory to spare, so that later ones are no faster.
        """
        space = space or SearchSpace()
        candidates = Candidates(self.model, self.job, self.cluster.num_gpus, global_batch, space)
        pieces = list(candidates.batches())
        if not pieces:
            return []
        layouts = LayoutBatch.concatenate(pieces)
        about = self.model, self.cluster, self.job
        roomy_s = np.concatenate([time_with_room(*about, piece, self.calibration).step_s for piece in pieces])
        order = np.argsort(roomy_s, kind="stable")[: int(np.sum(roomy_s <= at_most_s))]
        search, found = Search(best=BestLayouts(max(top, 1), tied_within(self.calibration))), list[PlannedLayout]()
        for start in range(0, len(order), AT_A_TIME):
            if found and len(search.best) >= top and search.best.scores.max() <= roomy_s[order[start]]:
                break
            self._look(search, layouts.take(order[start : start + AT_A_TIME]), risk)
            kept = [*self.evaluate_batch(search.best.layouts), *self.evaluate_batch(search.front.layouts)]
            found = [planned for planned in kept if accepts(planned)]
        self._refine(search, space, risk)
        refined = [planned for planned in self.evaluate_batch(search.best.layouts) if accepts(planned)]
        return [*refined, *found]

    def pareto(self, global_batch: int, *, space: SearchSpace | None = None, risk: float = RISK) -> list[PlannedLayout]:
        """Return the layouts that no other beats in time, memory and GPUs together, down to an eighth of the GPUs."""
        fronts: list[PlannedLayout] = []
        for num_gpus in halvings(self.cluster.num_gpus):
            planner = Planner(self.model, resized(self.cluster, num_gpus), self.job, self.calibration)
            try:
                fronts += thinned(planner.plan(global_batch, space=space, risk=risk).front)
            except UsageError:  # fewer GPUs may leave no layout
                continue
        return unbeaten(fronts)

    def what_if(
        self, global_batch: int, text: str, *, top: int = 10, space: SearchSpace | None = None, risk: float = RISK
    ) -> WhatIf:
        """Plan again with changes such as `mem=+8,gpus=128`, and return both plans."""
        cluster, job, other_batch = changed(self.cluster, self.job, global_batch, parse_changes(text))
        other = Planner(self.model, cluster, job, self.calibration)
        before = self.plan(global_batch, top=top, space=space, risk=risk)
        after = other.plan(other_batch, top=top, space=space, risk=risk)
        return WhatIf(text=text, before=before, after=after)

    def least_gpus(
        self, global_batch: int, *, above: int = 0, space: SearchSpace | None = None, risk: float = RISK
    ) -> int | None:
        """Return the least number of GPUs of the same kind, above a number, that a layout fits on.

        It is found by doubling, and then among the whole nodes in between; None where a few doublings find none.
        """
        node, states = self.cluster.gpus_per_node, self._state_bytes()
        start = max(above + 1, math.ceil(LEAST_STATES * states / self.cluster.gpu.memory_bytes))
        doubled = [1]
        while doubled[-1] < start << MAX_DOUBLINGS:
            doubled.append(min(2 * doubled[-1], node) if doubled[-1] < node else 2 * doubled[-1])
        fits = partial(self._fits_on, global_batch, space=space, risk=risk)
        found = next((number for number in doubled if number >= start and fits(number)), None)
        if found is None or found <= node:
            return found
        between = range(max(start, found // 2 + 1), found)
        return next((number for number in between if number % _step(found, node) == 0 and fits(number)), found)

    def longest_seq(self, global_batch: int, *, space: SearchSpace | None = None, risk: float = RISK) -> int | None:
        """Return the longest sequence that a layout fits with, to an eighth; None where even short ones do not fit."""

        def fits(seq_len: int) -> bool:
            job = replace(self.job, seq_len=seq_len)
            planner = Planner(self.model, self.cluster, job, self.calibration)
            return planner._fits_on(global_batch, self.cluster.num_gpus, space=space, risk=risk)

        longest = self.job.seq_len
        while not fits(longest):
            longest //= 2
            if longest < LEAST_SEQ:
                return None
        while longest >= self.job.seq_len and 2 * longest <= MAX_SEQ and fits(2 * longest):
            longest *= 2
        above = (longest + longest * eighths // 8 for eighths in range(7, 0, -1))
        return next((seq_len for seq_len in above if seq_len <= MAX_SEQ and fits(seq_len)), longest)

    def _state_bytes(self) -> float:
        """Return the bytes of weights, gradients and optimizer that all GPUs together hold at least."""
        f = self.job.framework
        trained = f.optimizer_bytes + (0.0 if f.frees_gradients else f.gradient_bytes)
        return (f.weight_bytes + self.model.trained_share * trained) * self.model.num_params

    def _fits_on(self, global_batch: int, num_gpus: int, *, space: SearchSpace | None, risk: float) -> bool:
        """Tell whether any layout fits on so many GPUs of the same kind, by its memory alone."""
        try:
            cluster = resized(self.cluster, num_gpus)
            candidates = Candidates(self.model, self.job, num_gpus, global_batch, space)
        except UsageError:  # this number of GPUs does not fill whole nodes
            return False
        workload, capacity = Workload.of(self.model, self.job), float(cluster.gpu.memory_bytes)
        return any(
            np.any(layout_risk(workload, piece, self.job.framework, self.calibration.memory, capacity)[1].oom < risk)
            for piece in candidates.batches()
        )

    def explain(self, layout: Layout, *, space: SearchSpace | None = None, risk: float = RISK) -> Explanation:
        """Return all that is known of one layout, legal or not, with improvements from `space`."""
        broken = broken_rules(self.model, self.job, layout)
        reasons = tuple(reason for _, reason in broken)
        if any(rule.name in ("world", "expert_world", "batch") for rule, _ in broken):
            return Explanation(layout=layout, broken=reasons, planned=None, verdict="", stages=(), steps=())
        planned, fits = self.evaluate([layout])[0], True
        if planned.oom_probability >= risk:
            planned, fits = planned.with_room(), False
        return Explanation(
            layout=layout,
            broken=reasons,
            planned=planned,
            verdict="" if fits else memory_reason(planned),
            stages=self.stages(layout),
            steps=() if broken else better_steps(planned, self._neighbours(layout, space), risk),
        )

    def stages(self, layout: Layout) -> tuple[StageMemory, ...]:
        ranks, layouts = np.arange(layout.pp, dtype=np.float64), batch_of([layout] * layout.pp)
        workload = Workload.of(self.model, self.job)
        parts = estimate_memory(workload, layouts, self.job.framework, self.calibration.memory, ranks).parts
        return tuple(
            StageMemory(stage=rank, parts={name: float(part[rank]) for name, part in parts.items()})
            for rank in range(layout.pp)
        )

    def evaluate(self, layouts: list[Layout]) -> list[PlannedLayout]:
        return self.evaluate_batch(batch_of(layouts)) if layouts else []

    def evaluate_batch(self, layouts: LayoutBatch) -> list[PlannedLayout]:
        if not len(layouts):
            return []
        estimates = self.estimate(layouts)
        spread = estimates.memory_spread
        memory = memory_quantiles(estimates.memory_bytes, INTERVAL, self.calibration.memory, spread=spread)
        routing = self._routing(layouts)
        return [self._planned(layouts, estimates, memory, routing, row) for row in range(len(layouts))]

    def _level(self) -> str:
        """Return who measured this kind of machine."""
        time, gpu = self.calibration.time, self.cluster.gpu.name
        num, kind = time.num_sources(gpu), gpu.upper() if time.sources else self.job.framework.name
        by = f"as {count(num, 'source')} measured {kind}" if num else f"of {kind}, which no source measured"
        own = f"{count(time.num_own, 'run')} of yours" if time.num_own else "no run of yours narrows the range yet"
        return f"{by}; {own}"

    def _routing(self, layouts: LayoutBatch) -> list[tuple[float, float | None]]:
        """Return the load of the busiest expert-parallel rank, and the memory with balanced routing."""
        workload = Workload.of(self.model, self.job)
        if not workload.imbalance:
            return [(1.0, None)] * len(layouts)
        equal = replace(workload, imbalance=0.0)
        found = estimate_memory(equal, layouts, self.job.framework, self.calibration.memory).device_bytes
        loads = np.broadcast_to(busiest_rank(workload, layouts)[0], len(layouts))
        rows = zip(loads, found, layouts.ep, strict=True)
        return [(float(load), float(size)) if ep > 1 else (1.0, None) for load, size, ep in rows]

    def estimate(self, layouts: LayoutBatch | Layout | str) -> Estimate:
        """Estimate memory and time of a batch, or of one layout; text is refused with a hint."""
        if isinstance(layouts, str):
            problem = f"the layout {layouts!r} says nothing of its GPUs and its global batch"
            raise UsageError(problem, hint="give a Layout, or take zenith_tune.estimate, which reads text")
        batch = batch_of([layouts]) if isinstance(layouts, Layout) else layouts
        return estimate(self.model, self.cluster, self.job, batch, self.calibration)

    def _look(self, search: Search, piece: LayoutBatch, risk: float) -> None:
        found = self.estimate(piece)
        fits = found.oom_probability < risk
        search.num_considered += len(piece)
        search.num_not_fitting += int(np.sum(~fits))
        search.best.add(piece, np.where(fits, found.expected_s, np.inf))
        near = found.memory_bytes < NEAR_MEMORY * self.cluster.gpu.memory_bytes
        roomy_s = found.step_s - found.time_parts.get(PRESSURE, 0.0)
        search.too_large.add(piece, np.where(near & ~fits, roomy_s, np.inf))
        search.smallest.add(piece, found.memory_bytes)
        search.front.add(piece, np.where(fits, found.step_s, np.inf), found.memory_bytes)

    def _refine(self, search: Search, space: SearchSpace, risk: float) -> None:
        """Try every number of block-recomputed layers for the best: the candidates have only some of them."""
        pinned = {"recompute", "recompute_layers"} & space.pinned.keys()
        probe = layout_at(LayoutBatch.of(recompute=RECOMPUTE_BLOCK, recompute_layers=1), 0)
        if pinned or not len(search.best) or broken_rules(self.model, self.job, probe):
            return
        blocks = []
        for layout in (layout_at(search.best.layouts, row) for row in range(len(search.best))):
            chunk = layers_per_chunk(self.model.num_layers, pp=layout.pp, vp=layout.vp)
            if chunk - 1 > space.max_block_steps:
                blocks += [replace(layout, recompute="full/block", recompute_layers=n) for n in range(1, chunk)]
        if blocks:
            batch = batch_of(blocks)
            found = self.estimate(batch)
            search.best.add(batch, np.where(found.oom_probability < risk, found.expected_s, np.inf))

    def _near_misses(
        self, search: Search, candidates: Candidates, best: PlannedLayout | None, space: SearchSpace, risk: float
    ) -> Iterator[NearMiss]:
        kept = search.too_large if best or len(search.too_large) else search.smallest
        around, misses = partial(self._neighbours, space=space), self.evaluate_batch(kept.layouts)
        yield from memory_misses(misses, best, risk=risk, evaluate_neighbours=around)
        others = BestLayouts(NUM_NEAR_MISSES)
        for piece in candidates.near_batches():
            found = self.estimate(piece)
            others.add(piece, np.where(found.oom_probability < risk, found.expected_s / piece.gbs, np.inf))
        yield from batch_misses(self.evaluate_batch(others.layouts), best, candidates.global_batch)

    def _neighbours(self, layout: Layout, space: SearchSpace | None) -> list[PlannedLayout]:
        return self.evaluate(neighbours(self.model, self.job, layout, space))

    def _planned(
        self,
        layouts: LayoutBatch,
        found: Estimate,
        memory: FloatArray,
        routing: list[tuple[float, float | None]],
        row: int,
    ) -> PlannedLayout:
        layout = layout_at(layouts, row)
        step_s = float(found.step_s[row])
        time = self.calibration.time
        spread, level_sd = float(found.step_spread[row]), float(found.level_sd[row])
        low, high = time.ends(spread / time.spread, level_sd)
        tokens = layout.global_batch * self.job.seq_len
        peak = self.cluster.gpu.matrix_flops(self.job.precision) * layout.num_gpus
        return PlannedLayout(
            layout=layout,
            step_s=step_s,
            expected_s=float(found.expected_s[row]),
            step_interval_s=(step_s * math.exp(low), step_s * math.exp(high)),
            time_parts={name: float(part[row]) for name, part in found.time_parts.items()},
            memory_bytes=float(found.memory_bytes[row]),
            memory_interval_bytes=(float(memory[0, row]), float(memory[1, row])),
            busiest_load=routing[row][0],
            balanced_bytes=routing[row][1],
            memory_parts={name: float(part[row]) for name, part in found.memory_parts.items()},
            capacity_bytes=float(self.cluster.gpu.memory_bytes),
            oom_probability=float(found.oom_probability[row]),
            tokens_per_s=tokens / step_s,
            mfu=flops_per_token(self.model, self.job.seq_len) * tokens / step_s / peak,
        )


def _step(num_gpus: int, node: int) -> int:
    """Return by how many GPUs to count below a number: whole nodes, and no finer than an eighth of it."""
    return node * max(num_gpus // (8 * node), 1)
