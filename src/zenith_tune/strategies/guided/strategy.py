"""Plan, try, learn, plan again: the planner's estimate guides the trials, and each trial corrects it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from zenith_tune.calibrate.calibration_file import load_calibration
from zenith_tune.describe.topology import tensor_reason
from zenith_tune.errors import OptionsWithoutEffect, UsageError
from zenith_tune.evaluators.failures.no_effect import HINT, NUM_ALIKE, are_alike
from zenith_tune.layouts.layout import layout_name
from zenith_tune.layouts.layout_batch import layout_at
from zenith_tune.planner.plan import CAUSES
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TrialsUnderWay, TunedJob, TuningStrategy
from zenith_tune.strategies.guided.acquisition import Acquisition, Proposal
from zenith_tune.strategies.guided.candidates import Candidates
from zenith_tune.strategies.guided.learned import keep, kept_calibration, measured_run, starting_calibration
from zenith_tune.strategies.guided.observer import CountedTrials, TrialObserver
from zenith_tune.strategies.guided.prior import Prior, prior_of
from zenith_tune.study.parameters import Direction, Parameter
from zenith_tune.study.trial import NOT_RUN, Findings, Prediction, Trial
from zenith_tune.units import GIB, count, format_seconds

STEPS_APART, MEMORY_APART = 0.2, 0.1
"""Ranges of predicted log step times and log memory above which trials cannot all come out the same."""
NO_POINTS = "strategy guided finds no point that is worth a trial: widen the search space, or change the batch"
EXPECTED_TRIALS = 6
"""Mean number of trials until it stops, over measured landscapes (benchmarks/results/replay.md)."""
EXPECTED_BY = "strategy guided, by what it had learned when it picked the trial"


@StrategyRegistry.register("guided")
class GuidedStrategy(TuningStrategy):
    """Tries the layout whose trial saves the most training time for its cost, until none saves more than it costs.

    `calibration` is a file to begin with instead of what earlier studies on this machine measured; `learn=false` saves
    nothing for the next one. Deterministic: the same values lead to the same picks.
    """

    ends_by_itself = True
    plans = True

    def __init__(self, *, calibration: str | None = None, learn: bool = True) -> None:
        self.learn = learn
        self.given = Path(calibration) if calibration else None
        self._job = TunedJob()
        self._search: _Search | None = None

    def prepare(self, job: TunedJob) -> None:
        if job.subject is None:
            raise UsageError(f"strategy guided needs to know model and cluster, but {job.unplanned}")
        # A file that is not a calibration is reported before anything starts.
        if self.given is not None:
            load_calibration(self.given)
        if job.folder is not None:
            kept_calibration(job.folder)
        tables = job.tables()
        if next(iter(job.points() if tables is None else tables), None) is None:
            raise UsageError(NO_POINTS)
        self._job, self._search = job, None

    def expected_best(self) -> Prediction | None:
        """Return what the planner and earlier studies expect of the layout that is tried first."""
        return self._begun().expected_best()

    def scope(self) -> str:
        fits = int((self._begun().acquisition.memory.fits >= LIKELY).sum())
        return f"{count(fits, 'layout')} fit" if fits != 1 else "1 layout fits"

    def _begun(self) -> _Search:
        self._search = self._search or _Search(self._job, self)
        return self._search

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        search = self._begun()
        self._job.tell(search.opening)
        if self._job.subject is not None and (reason := tensor_reason(self._job.subject.cluster)):
            self._job.tell(reason)
        is_sound = True
        try:
            search.run(eval_fn, direction)
        except OptionsWithoutEffect:
            is_sound = False
            raise
        finally:
            if is_sound:
                search.keep()

    def expected_trials(self, search_space: Mapping[str, Parameter]) -> int:
        return EXPECTED_TRIALS

    def why_done(self) -> str | None:
        return self._search.why_done() if self._search else None

    def findings(self) -> Findings | None:
        return self._search.findings() if self._search else None


class _Search:
    def __init__(self, job: TunedJob, strategy: GuidedStrategy) -> None:
        if job.subject is None:
            raise UsageError(f"strategy guided needs to know model and cluster, but {job.unplanned}")
        self._job, self._strategy, self._subject = job, strategy, job.subject
        candidates = Candidates.of_job(job, has_experts=bool(job.subject.model.num_experts))
        if candidates is None:
            raise UsageError(NO_POINTS)
        self.candidates = candidates
        self.calibration, origin = starting_calibration(
            job.subject, given=strategy.given, learns=strategy.learn, folder=job.folder
        )
        prior = prior_of(job.subject, self.calibration, self.candidates.batch, job.memory_limit_bytes)
        self.acquisition = Acquisition(prior, job.training)
        capacity = float(job.subject.cluster.gpu.memory_bytes)
        self._limit_bytes = min(job.memory_limit_bytes or capacity, capacity)
        self._observer: TrialObserver
        self._tried: list[tuple[Proposal, Trial, float | None]] = []
        self._other_axes: list[tuple[Proposal, Trial, float | None]] = []
        """Trials of parameters that no layout has, from which nothing is learned about layouts."""
        self._is_over = False
        name, cluster = job.subject.model.name, job.subject.cluster.name
        self.opening = f"guided: {len(self.candidates)} layouts of {name} on {cluster}, {origin}"

    def expected_best(self) -> Prediction:
        """Return what is expected of the layout that is tried first."""
        index = self.acquisition.first
        time, level_sd = self.acquisition.time, float(self.acquisition.prior.estimate.level_sd[index])
        error = math.hypot(float(time.sd[index]), level_sd)
        return Prediction(step_s=math.exp(time.mean[index]), error=error, by=EXPECTED_BY)

    def run(self, eval_fn: EvalFunction, direction: Direction) -> None:
        """Pick and learn until nothing is worth a trial."""
        self._observer = TrialObserver(self.acquisition, direction, self._limit_bytes)
        self._learn_baseline()
        under_way: TrialsUnderWay[Proposal] = TrialsUnderWay(eval_fn)
        while True:
            has_room, ended = under_way.look()
            for pick, trial in ended:
                self._learn(pick, trial)
            if has_room and (pick_next := self.acquisition.pick()) is not None:
                under_way.start(pick_next, self.candidates.point(pick_next.index), pick_next.why)
            elif under_way:
                under_way.wait()
            else:
                break
        self._settle_other_axes(eval_fn)
        self._is_over = True

    def _settle_other_axes(self, eval_fn: EvalFunction) -> None:
        """Try other values of parameters that no layout has, one at a time, on the best layout.

        Their effect is not predicted: each is expected to be as fast as the best, and is tried where a gain would pay.
        """
        index = self.acquisition.best
        if index is None:
            return
        twins, own = self.candidates.points(index), self._job.own_point()
        was_own = any(trial.is_baseline and pick.index == index for pick, trial, _ in self._tried)
        best = own if was_own and own is not None and own in twins else self.candidates.point(index)
        for name in best:
            for point in [twin for twin in twins if twin != best and {**twin, name: best[name]} == best]:
                if not self.acquisition.is_worth_a_look():
                    return
                change = f"{name}={point[name]} in place of {best[name]}"
                why = f"{change} on the fastest layout: its effect is not predicted"
                pick = Proposal(index=index, why=why, expected_s=math.exp(self.acquisition.best_log_step))
                trial = eval_fn.run(point, why)
                log_step = self._observer.log_step(index, trial) if trial.ok else None
                self._other_axes.append((pick, trial, log_step))
                if self._observer.is_over_limit(trial):
                    continue
                if log_step is not None and log_step < self.acquisition.best_log_step:
                    best, self.acquisition.best_log_step = point, log_step

    def keep(self) -> None:
        """Save what was learned for the next study on this machine."""
        # Work that no formula describes does not show how fast the machine does other work.
        if not self._strategy.learn or self._subject.model.traced is not None:
            return
        counted, layouts = CountedTrials(self._job.folder), self.acquisition.prior.layouts
        new = [(pick, trial) for pick, trial, _ in self._tried if trial.number not in counted.numbers]
        runs = [measured_run(self._subject, layouts, pick.index, trial) for pick, trial in new]
        path = keep(self._subject, self.calibration, runs, self.acquisition.memory.common_error)
        if path is not None:
            counted.add([trial.number for _, trial in new if trial.number != NOT_RUN])
            self._job.tell(f"learned: saved for the next study in {path}")

    def why_done(self) -> str | None:
        if not self._is_over:
            return None
        if self.acquisition.best is None:
            return "no layout is left that may run"
        outlook = self.acquisition.outlook()
        if outlook is None:
            return "every layout that may run has been tried"
        length = self._job.training.describe(math.exp(self.acquisition.best_log_step))
        saves = f"the next one would save {format_seconds(max(outlook.saved_s, 0.0))} of {length} on average"
        return f"more trials would cost more than they save: {saves}, and take {format_seconds(outlook.cost_s)}"

    def findings(self) -> Findings:
        prior, every = self.acquisition.prior, [*self._tried, *self._other_axes]
        rows = [review_row(prior, pick.index, pick.expected_s, log_step, trial) for pick, trial, log_step in every]
        measured = [(pick.expected_s, log_step) for pick, _, log_step in self._tried if log_step is not None]
        errors = [math.expm1(log_step - math.log(expected_s)) for expected_s, log_step in measured]
        error = sum(map(abs, errors)) / len(errors) if errors else math.nan
        lines = [f"step-time predictions were off by {error:.0%} on average" if errors else "no step time was measured"]
        if self.acquisition.best is not None:
            lines.append(limits_of_best(prior, self.acquisition.best))
        return Findings(
            title="predicted against measured",
            columns=COLUMNS,
            rows=tuple(rows),
            lines=tuple(lines),
            predictions={
                trial.number: Prediction(step_s=pick.expected_s, error=pick.error, by=EXPECTED_BY)
                for pick, trial, _ in every
                if trial.number != NOT_RUN and math.isfinite(pick.expected_s)
            },
        )

    def _learn_baseline(self) -> None:
        """Count the run of the user's own command as the trial of its layout."""
        own, trial = self._job.own_point(), self._job.baseline()
        layout = self._job.layout(own) if own is not None else None
        if trial is None or layout is None or (index := self.candidates.index_of(layout)) is None:
            return
        self._learn(self.acquisition.taken(index), trial)

    def _learn(self, pick: Proposal, trial: Trial) -> None:
        rule = self._observer.observe(pick.index, trial)
        log_step = self._observer.log_step(pick.index, trial) if trial.ok else None
        self._tried.append((pick, trial, log_step))
        if rule:
            self._job.tell(rule)
        self._refuse_without_effect()

    def _refuse_without_effect(self) -> None:
        """Stop where trials take the same time, and the same memory if reported, although predicted to differ."""
        trials = [trial for _, trial, _ in self._tried]
        if len(trials) < NUM_ALIKE:
            return
        prior, rows = self.acquisition.prior, [pick.index for pick, _, _ in self._tried]
        steps, memory = prior.log_step[rows], prior.log_memory[rows]
        has_memory = all(trial.peak_memory_bytes for trial in trials)
        are_apart = max(steps) - min(steps) > STEPS_APART or (has_memory and max(memory) - min(memory) > MEMORY_APART)
        if are_apart and are_alike(trials, by_memory=has_memory):
            what = f"{len(trials)} trials all take the same time{' and memory' if has_memory else ''}"
            raise OptionsWithoutEffect(f"the options take no effect: {what}, against the prediction; {HINT}")


LIKELY = 0.5
"""The least probability of fitting with which a layout is counted as one that fits."""
LEAST_SHARE = 0.05
"""The least share of a step that is listed."""
COLUMNS = ("trial", "plan s", "expected s", "took s", "off", "plan GiB", "peak GiB", "layout")


def review_row(prior: Prior, index: int, expected_s: float, log_step: float | None, trial: Trial) -> tuple[str, ...]:
    """Return a row of the table: a layout as planned, as expected when picked, and as measured."""
    planned_s, memory = math.exp(prior.log_step[index]), float(prior.estimate.memory_bytes[index])
    measured = f"{math.exp(log_step):.3g}" if log_step is not None else str(trial.outcome)
    off = f"{math.expm1(log_step - math.log(expected_s)):+.0%}" if log_step is not None else ""
    peak = f"{trial.peak_memory_bytes / GIB:.1f}" if trial.peak_memory_bytes else ""
    number = "0" if trial.is_baseline else str(trial.number if trial.number != NOT_RUN else "")
    figures = (f"{planned_s:.3g}", f"{expected_s:.3g}", measured, off, f"{memory / GIB:.1f}", peak)
    return (number, *figures, layout_name(layout_at(prior.layouts, index)))


def limits_of_best(prior: Prior, index: int) -> str:
    """Return what the best layout spends its time on, by the estimate."""
    step_s = float(prior.estimate.step_s[index])
    shares = {name: float(part[index]) / step_s for name, part in prior.estimate.time_parts.items()}
    large = sorted((item for item in shares.items() if item[1] >= LEAST_SHARE), key=lambda item: -item[1])
    summary = ", ".join(f"{CAUSES.get(name, name)} {share:.0%}" for name, share in large)
    return f"the best layout's predicted step is {summary}"
