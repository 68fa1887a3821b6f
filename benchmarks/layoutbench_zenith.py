"""ZenithTune's strategies as tuners of LayoutBench.

    PYTHONPATH=benchmarks layoutbench run --tuner layoutbench_zenith:Guided

The calibration that guided begins with is fitted to the measured runs of ZENITHTUNE_DATA less those of
the model and cluster that it searches. The form of its models, and its own constants, were chosen with the published
landscapes at hand.
"""

from __future__ import annotations

import csv
import functools
import queue
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from held_out import forbidden
from places import measured_data
from replay import calibration_without
from replay_landscape import Find, Landscape, Recorded, layout_of, read_runs, subject_of
from replay_strategies import LIKE_MEGATRON, heuristic_find, heuristic_space, tuned_job

from layoutbench import Params, Problem, Result
from layoutbench.build import MODEL
from layoutbench.runner import NotApplicableError
from layoutbench.tuners.space import scratch_folder
from zenith_calibration.calibrate.measured_rows import read_rows
from zenith_calibration.calibrate.memory_fit import layout_columns
from zenith_tune.calibrate.calibration_file import save_calibration
from zenith_tune.calibrate.measured_run import DEFAULT_COLUMNS, MeasuredRun
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.strategies.base import PlainFunction, TuningStrategy
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.strategies.megatron_heuristic import MegatronHeuristicStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Value
from zenith_tune.study.trial import Outcome, Trial

OUTCOMES = {"ok": Outcome.OK, "oom": Outcome.OOM}


class StrategyTuner:
    """Run a strategy, which calls for each trial, in a thread of its own, and hand its points out one by one."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._asked: queue.Queue[Params | BaseException | None] = queue.Queue()
        self._answered: queue.Queue[Result] = queue.Queue()
        self._landscape = to_replay(problem)
        self.space: Mapping[str, Parameter] = {
            name: CategoricalParameter(list(axis)) for name, axis in problem.axes.items()
        }
        strategy, space, find = self.strategy(self._landscape)
        self._find = find
        strategy.prepare(tuned_job(self._landscape))
        self._thread = threading.Thread(target=self._run, args=(strategy, space), daemon=True)
        self._tried: dict[int, Trial] = {}

    def strategy(self, landscape: Landscape) -> tuple[TuningStrategy, Mapping[str, Parameter], Find]:
        """Return the strategy, its search space, and what a point of that stands for in the landscape."""
        raise NotImplementedError

    def ask(self) -> Params | None:
        """Return the strategy's next point."""
        if self._thread.ident is None:
            self._thread.start()
        asked = self._asked.get()
        if isinstance(asked, BaseException):
            raise asked
        return asked

    def tell(self, params: Params, result: Result) -> None:
        """Let the strategy go on."""
        self._answered.put(result)

    def _run(self, strategy: TuningStrategy, space: Mapping[str, Parameter]) -> None:
        ended: BaseException | None = None
        try:
            strategy.optimize(_Trials(self._trial), space, Direction.MINIMIZE)
        except Exception as error:  # of whatever kind: it is raised where the tuner is asked
            ended = error
        self._asked.put(ended)

    def _trial(self, params: Mapping[str, Value], why: str) -> Trial:
        item = self._find(params)
        if item is None:
            return Trial(params=params, outcome=Outcome.PRUNED, cause="not in the record")
        if id(item) not in self._tried:
            self._asked.put({name: value for name, value in item.point.items() if isinstance(value, int | str)})
            self._tried[id(item)] = _trial(params, self._answered.get(), why)
        return self._tried[id(item)]


class _Trials(PlainFunction):
    """Answer a strategy with whole trials."""

    def __init__(self, trial: Any) -> None:
        self._trial = trial

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        """Return the trial, once it has been run."""
        found: Trial = self._trial(params, why)
        return found


def _trial(params: Mapping[str, Value], result: Result, why: str) -> Trial:
    peak = result.peak_memory_bytes
    return Trial(
        params=params,
        outcome=OUTCOMES.get(result.outcome, Outcome.ERROR),
        value=result.step_s,
        step_s=result.step_s,
        duration_s=result.cost_s,
        peak_memory_bytes=None if peak is None else round(peak),
        why=why,
    )


class Guided(StrategyTuner):
    """Search with `--strategy guided`, calibrated on other landscapes."""

    def strategy(self, landscape: Landscape) -> tuple[TuningStrategy, Mapping[str, Parameter], Find]:
        """Return the strategy with its calibration in a file."""
        file = scratch_folder(self) / "calibration.json"
        save_calibration(self.calibration(landscape), file)
        return GuidedStrategy(calibration=str(file), learn=False), self.space, landscape.finder()

    def calibration(self, landscape: Landscape) -> Calibration:
        """Return what it begins with."""
        return _calibration(landscape.subject.job.framework.name, landscape.place)


class GuidedUncalibrated(Guided):
    """Search with `--strategy guided` and no measured run to begin with."""

    def calibration(self, landscape: Landscape) -> Calibration:
        """Return the estimate's own coefficients."""
        return Calibration(framework=landscape.subject.job.framework.name)


class TwoStageHeuristic(StrategyTuner):
    """Search with `--strategy megatron-heuristic`, which turns tensor and expert parallelism, then the micro-batch."""

    def strategy(self, landscape: Landscape) -> tuple[TuningStrategy, Mapping[str, Parameter], Find]:
        """Return the strategy in its own search space, or refuse what it cannot search."""
        framework, num_gpus = landscape.subject.job.framework.name, landscape.subject.cluster.num_gpus
        if not framework.startswith(LIKE_MEGATRON):
            raise NotApplicableError(f"{framework} has no tensor or expert parallelism that it could turn")
        if num_gpus & (num_gpus - 1):
            raise NotApplicableError(f"{num_gpus} GPUs are no power of two")
        return MegatronHeuristicStrategy(n_gpus=num_gpus), heuristic_space(landscape), heuristic_find(landscape)


@functools.cache
def _calibration(framework: str, place: tuple[str, str]) -> Calibration:
    found, _ = calibration_without(_runs(), framework, place)
    return found


@functools.cache
def _runs() -> list[MeasuredRun]:
    return read_runs(measured_data())


def to_replay(problem: Problem) -> Landscape:
    """Return a problem as the replay knows it, without any measurement; what its framework forbids is left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "layouts.csv")
        rows = [measured_row(problem, params) for params in problem.layouts]
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        runs = list(read_rows(path))
    recorded = [
        Recorded(
            point=dict(params), layout=layout_of(DEFAULT_COLUMNS | layout_columns(run), run.num_gpus or 1), step_s=None
        )
        for params, run in zip(problem.layouts, runs, strict=True)
        if forbidden(run) is None
    ]
    first = runs[0]
    return Landscape(
        name=first.model_name, source="layoutbench", place=first.landscape, subject=subject_of(first), recorded=recorded
    )


def measured_row(problem: Problem, params: Params) -> dict[str, Any]:
    """Return a layout with the columns of a table of measured runs."""
    job, cluster = problem.job, problem.cluster
    chosen = {**job, **params}
    recompute, _, way = str(chosen.get("recompute", "none")).partition("/")
    framework = str(job["framework"])
    return {
        **{name: problem.model.get(own, "") for own, name in MODEL.items()},
        **{name: chosen.get(name, 1) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "mbs")},
        "source_id": "layoutbench",
        "year": job.get("year", ""),
        "framework": f"accelerate, {framework}" if "transformers" in framework else framework,
        "model": problem.model["name"],
        "params_b": problem.model.get("params_b", ""),
        "gpu": cluster["gpu"],
        "gpu_mem_gib": cluster["gpu_memory_gib"],
        "n_gpus": cluster["num_gpus"],
        "gpus_per_node": cluster.get("gpus_per_node", ""),
        "precision": job.get("precision", ""),
        "seq_len": job["seq_len"],
        "gbs": job["global_batch"],
        "zero_stage_or_fsdp": f"ZeRO-{chosen.get('zero', 0)}",
        "recompute": recompute,
        "recompute_method": way.rstrip("0123456789"),
        "recompute_num_layers": way.lstrip("abcdefghijklmnopqrstuvwxyz"),
        "attention": "unfused" if chosen.get("attention") in ("eager", "unfused") else "",
        "outcome": "ok",
    }
