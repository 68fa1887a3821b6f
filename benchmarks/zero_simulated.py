"""Judges zero-progressive on simulated jobs, where the best point is known: how many runs until it is found?

    python benchmarks/zero_simulated.py            prints a table and writes benchmarks/results/zero_simulated.md
    python benchmarks/zero_simulated.py --json

Each job is a model on some GPUs with a memory and a time of its own. They follow other laws than the strategy reckons
with: states of 16 bytes per parameter instead of 20, activations that are off from the planner's by a factor and have a
part that does not grow, an allocator that loses some memory to fragments, a GPU that slows down when it is nearly full
and dislikes odd sizes, communication that overlaps or not, and noise. The grid is every point whose keys have an effect
at its stage. Two further situations: a planner whose activations are six times too large, where the user's own command
has run at the smallest micro-batch of the highest stage, and a model that nobody knows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from places import RESULTS

from zenith_tune import Direction, JobSpec, load_cluster, load_framework, load_model
from zenith_tune.describe.deepspeed_config import DsConfig, matters
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.estimates.model_flops import flops_per_token
from zenith_tune.layouts.layout import divisors
from zenith_tune.strategies.base import EvalFunction, TunedJob
from zenith_tune.strategies.zero_progressive.feasibility import ActivationProfile, ZeroSubject
from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import GIB

OUTPUT = RESULTS / "zero_simulated.md"
NEAR = 0.02
"""What counts as the best: the plateau of 1% twice, once for the micro-batch and once for the stage."""
SHARE = 0.25
"""The part of the grid's runs that the strategy may take."""
BUCKETS = (500_000_000, 50_000_000, 200_000_000)
LOOKED_AT = (
    (
        ("llama3.2-1b", "llama3.2-3b", "llama2-7b", "llama3-8b", "llama2-13b"),
        ("a100-40x8", "a100x8", "h100x8", "h100x32"),
    ),
    (("gpt2-xl", "qwen2.5-1.5b", "qwen3-4b", "mistral-7b", "qwen3-14b"), ("v100-32x8", "a100x16", "h200x8", "l40sx4")),
)
"""Models and clusters of the jobs that the strategy was mended by."""
NEW = (
    (("bloom-1b1", "gpt3-2.7b", "qwen2.5-3b", "qwen2.5-7b", "mpt-13b"), ("a40x8", "a100-40x16", "h100x16", "b200x8")),
)
"""Those of jobs that it was not."""
SEQUENCES = (1024, 4096)
RANK_BATCHES = (64, 96)
NOISES = (0.0, 0.003)
Point = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One job, with equations for its memory and time."""

    subject: ZeroSubject
    rank_batch: int
    seed: int
    noise: float
    has_keys: bool
    """Whether other keys than stage and micro-batch are searched."""
    overestimated: float = 1.0
    """How many times too large the planner's activations are."""
    is_known: bool = True
    """Whether the strategy knows the model."""

    @property
    def name(self) -> str:
        """What it is called."""
        at = self.subject
        return f"{at.model.name} on {at.cluster.name}, sequence {at.job.seq_len}, {self.rank_batch} a rank"

    def space(self) -> dict[str, Parameter]:
        """Return what is searched."""
        space: dict[str, Parameter] = {
            "stage": CategoricalParameter([0, 1, 2, 3]),
            "mbs": CategoricalParameter(divisors(self.rank_batch)),
        }
        if self.has_keys:
            space["overlap_comm"] = CategoricalParameter([False, True])
            space["reduce_bucket_size"] = CategoricalParameter(BUCKETS)
        return space

    def points(self) -> Iterator[dict[str, Value]]:
        """Yield what a grid would run."""
        space = self.space()
        for values in itertools.product(*(parameter.grid(9) for parameter in space.values())):
            point = dict(zip(space, values, strict=True))
            if self.idle_key(point) is None:
                yield point

    def idle_key(self, point: Point) -> str | None:
        """Return a key that has no effect at the point's stage and yet another value than its first."""
        first = {name: parameter.grid(9)[0] for name, parameter in self.space().items()}
        return next(
            (name for name in point if not matters(name, int(point["stage"])) and point[name] != first[name]), None
        )

    def why_pruned(self, point: Point, memory: ActivationProfile) -> str | None:
        """Return why the preset prunes a point, by what runs have measured of memory."""
        idle = self.idle_key(point)
        if idle is not None:
            return f"{idle} has no effect"
        return memory.why_hopeless(point) if self.is_known else None

    def peak_bytes(self, point: Point) -> float:
        """Return the memory that is allocated at the peak."""
        stage, mbs, n = int(point["stage"]), int(point["mbs"]), self.subject.num_ranks
        params, rng = float(self.subject.model.num_params), random.Random(self.seed)
        states = params * (2 / (n if stage == 3 else 1) + 2 / (n if stage >= 2 else 1) + 12 / (n if stage else 1))
        buckets = 0 if not stage else 2.0 * int(point.get("reduce_bucket_size", BUCKETS[0]))
        per_sample = rng.uniform(0.6, 1.3) * self.subject.planned_activations({"mbs": 1}) / self.overestimated
        return states + buckets + rng.uniform(0.2, 1.5) * GIB + per_sample * mbs

    def fits(self, point: Point) -> bool:
        """Tell whether a point runs; a part of the memory is lost to fragments."""
        return self.peak_bytes(point) * 1.04 <= self.subject.capacity_bytes

    def samples_per_s(self, point: Point) -> float:
        """Return the true speed."""
        stage, mbs, n = int(point["stage"]), int(point["mbs"]), self.subject.num_ranks
        at, gpu = self.subject, self.subject.cluster.gpu
        flops = flops_per_token(at.model, at.job.seq_len) * at.job.seq_len
        num_micro, rng = self.rank_batch // mbs, random.Random(f"time {self.seed}")
        # Small micro-batches fill the GPU badly, and odd ones leave their last wave half empty.
        idle_samples = rng.uniform(200, 6000) / at.job.seq_len
        waves = 1.0 if mbs & (mbs - 1) == 0 else 1.015
        step_s = num_micro * (mbs + idle_samples) * waves * flops / (0.55 * gpu.bf16_flops)
        link = (at.cluster.fast_link if n <= at.cluster.fast_domain else at.cluster.network).bytes_per_s
        gathers = num_micro * 4 if stage == 3 else 0
        comm_s = (4 + gathers) * at.model.num_params * (n - 1) / n / link
        step_s += comm_s * (0.6 if stage >= 2 and point.get("overlap_comm") else 1.0)
        step_s += 2e-5 * at.model.num_params / int(point.get("reduce_bucket_size", BUCKETS[0])) * num_micro
        step_s += 28 * at.model.num_params / (n if stage else 1) / gpu.memory_bytes_per_s
        full = self.peak_bytes(point) / at.capacity_bytes
        return self.rank_batch * n / (step_s * (1 + max(full - 0.9, 0.0)))


@dataclass
class SimulatedTrials(EvalFunction):
    """Answer a strategy from a surface; a point that was run is not run again."""

    surface: Surface
    trials: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with nothing measured."""
        self.memory = ActivationProfile(self.surface.subject)

    def __call__(self, params: Point) -> float | None:
        """Return the value."""
        return self.run(params).value

    def run(self, params: Point, why: str = "") -> Trial:
        """Return the trial of a point."""
        if (reason := self.surface.why_pruned(params, self.memory)) is not None:
            return Trial(params=params, outcome=Outcome.PRUNED, cause=reason)
        key = json.dumps(dict(params))
        if key not in self.trials:
            self.trials[key] = self._trial(params)
            self.memory.observe(self.trials[key])
        return self.trials[key]

    def job(self) -> TunedJob:
        """Return what the strategy knows of the job: with a planner that is far off, also a run of the own command."""
        surface = self.surface
        own = next(point for point in surface.points() if (point["stage"], point["mbs"]) == (3, 1))
        if surface.overestimated == 1 or not surface.fits(own):
            return TunedJob(subject=surface.subject if surface.is_known else None)
        baseline = self._trial(own)
        self.memory.observe(baseline)
        return TunedJob(subject=surface.subject, own_point=lambda: own, baseline=lambda: baseline)

    def submit(self, params: Point, why: str = "") -> Future[Trial]:
        """Return the same at once."""
        future: Future[Trial] = Future()
        future.set_result(self.run(params, why))
        return future

    def _trial(self, params: Point) -> Trial:
        if not self.surface.fits(params):
            has = f"GPU 0 has a total capacity of {self.surface.subject.capacity_bytes / GIB:.2f} GiB"
            return Trial(params=params, outcome=Outcome.OOM, cause=f"CUDA out of memory. {has}")
        rng = random.Random(f"{self.surface.seed} {json.dumps(dict(params))}")
        value = self.surface.samples_per_s(params) * rng.gauss(1.0, self.surface.noise)
        peak = round(self.surface.peak_bytes(params))
        return Trial(params=params, outcome=Outcome.OK, value=value, unit="samples/s", peak_memory_bytes=peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a search."""

    name: str
    noise: float
    num_grid: int
    num_unpruned: int
    """Points of the grid that the preset's arithmetic leaves."""
    num_runs: int
    num_out_of_memory: int
    """Runs that failed for memory."""
    loss: float
    """How far the choice is behind the best of the grid, as a fraction of it."""

    @property
    def share(self) -> float:
        """Runs, as a part of the grid's."""
        return self.num_runs / self.num_grid


def judge(surface: Surface, *, probe: bool = False) -> Verdict | None:
    """Search a surface and compare with all of it; None where nothing fits, so that there is nothing to find."""
    points = list(surface.points())
    best = max((surface.samples_per_s(point) for point in points if surface.fits(point)), default=None)
    if best is None:
        return None
    trials, strategy = SimulatedTrials(surface), ZeroProgressiveStrategy(probe=probe)
    strategy.prepare(trials.job())
    strategy.optimize(trials, surface.space(), Direction.MAXIMIZE)
    chosen = max((t for t in trials.trials.values() if t.value is not None), key=lambda t: t.value or 0.0, default=None)
    found = surface.samples_per_s(chosen.params) if chosen is not None else 0.0
    return Verdict(
        name=surface.name,
        noise=surface.noise,
        num_grid=len(points),
        num_unpruned=sum(surface.why_pruned(point, ActivationProfile(surface.subject)) is None for point in points),
        num_runs=len(trials.trials),
        num_out_of_memory=sum(trial.outcome is Outcome.OOM for trial in trials.trials.values()),
        loss=1 - found / best,
    )


def surfaces(
    *, has_keys: bool, is_new: bool = False, overestimated: float = 1.0, is_known: bool = True
) -> Iterator[Surface]:
    """Yield the jobs: those that the strategy was mended by, or new ones."""
    groups = NEW if is_new else LOOKED_AT
    named = itertools.chain.from_iterable(itertools.product(models, clusters) for models, clusters in groups)
    chosen = itertools.product(named, SEQUENCES, RANK_BATCHES, NOISES)
    for seed, ((model, cluster), seq_len, rank_batch, noise) in enumerate(chosen, start=5000 * is_new):
        job = JobSpec(seq_len=seq_len, framework=load_framework("deepspeed"), precision="bf16")
        plan = PlanSubject(model=load_model(model), cluster=load_cluster(cluster), job=job)
        subject = ZeroSubject(
            model=plan.model, cluster=plan.cluster, job=job, config=DsConfig(values={}), num_ranks=plan.cluster.num_gpus
        )
        yield Surface(
            subject=subject,
            rank_batch=rank_batch,
            seed=seed,
            noise=noise,
            has_keys=has_keys,
            overestimated=overestimated,
            is_known=is_known,
        )


def verdicts(*, has_keys: bool = False, probe: bool = False, **how: Any) -> list[Verdict]:
    """Return how every search ended."""
    found = (judge(surface, probe=probe) for surface in surfaces(has_keys=has_keys, **how))
    return [verdict for verdict in found if verdict is not None]


def summary(found: list[Verdict]) -> dict[str, float]:
    """Return the figures that count."""
    return {
        "jobs": len(found),
        "best_found": sum(verdict.loss <= NEAR for verdict in found),
        "within_1_percent": sum(verdict.loss <= NEAR / 2 for verdict in found),
        "largest_loss": round(max(verdict.loss for verdict in found), 4),
        "runs": sum(verdict.num_runs for verdict in found),
        "out_of_memory": sum(verdict.num_out_of_memory for verdict in found),
        "grid_runs": sum(verdict.num_grid for verdict in found),
        "unpruned_grid_runs": sum(verdict.num_unpruned for verdict in found),
        "median_share": round(statistics.median(verdict.share for verdict in found), 4),
        "largest_share": round(max(verdict.share for verdict in found), 4),
        "within_a_quarter": sum(verdict.share <= SHARE for verdict in found),
        "within_a_quarter_of_unpruned": sum(verdict.num_runs <= SHARE * verdict.num_unpruned for verdict in found),
    }


def markdown(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Return the page."""
    heads = (
        "searched",
        "jobs",
        "within 2%",
        "within 1%",
        "largest loss",
        "runs",
        "out of memory",
        "grid",
        "of which unpruned",
    )
    quarters = ("within a quarter of the grid", "within a quarter of the unpruned")
    lines = [
        "# zero-progressive on simulated jobs",
        "",
        "Written by `python benchmarks/zero_simulated.py`, which says how the jobs are made. Losses are against the",
        "best point of the whole grid. Its unpruned points are those that the preset's arithmetic does not rule out,",
        "which a grid under the same preset would run. New jobs are other models on other GPUs: the strategy was",
        "written by the others; how far measured memory overrules the predicted one was chosen with both in view.",
        "",
        f"| {' | '.join([*heads, *quarters])} |",
        f"| --- |{' ---: |' * (len(heads) + len(quarters) - 1)}",
    ]
    for name, row in figures.items():
        cells = (
            *(f"{row[key]:.0f}" for key in ("jobs", "best_found", "within_1_percent")),
            f"{row['largest_loss']:.1%}",
            *(f"{row[key]:.0f}" for key in ("runs", "out_of_memory", "grid_runs", "unpruned_grid_runs")),
            *(f"{row[key]:.0f}" for key in ("within_a_quarter", "within_a_quarter_of_unpruned")),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print and write how the strategy did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object, and write nothing")
    options = parser.parse_args()
    searched: dict[str, dict[str, Any]] = {
        "stage and micro-batch": {},
        "the same, each stage probed": {"probe": True},
        "with overlap_comm and reduce_bucket_size": {"has_keys": True},
        "planned activations six times too large": {"overestimated": 6.0},
        "a model that nobody knows": {"is_known": False},
    }
    searched |= {f"new jobs: {name}": {**how, "is_new": True} for name, how in searched.items()}
    figures = {name: summary(verdicts(**how)) for name, how in searched.items()}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    OUTPUT.write_text(markdown(figures), encoding="utf-8")
    print(markdown(figures))


if __name__ == "__main__":
    main()
