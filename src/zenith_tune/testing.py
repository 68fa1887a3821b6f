"""Contract suites: subclass one in your tests, and a new preset, strategy, evaluator or runner is held to its contract.

class TestMyStrategy(StrategyContract):
    def make(self):
        return MyStrategy()
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from zenith_tune.errors import TrialExhausted, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.base import TuningPreset
from zenith_tune.presets.parts import completed
from zenith_tune.runners.base import End, Runner
from zenith_tune.strategies.base import PlainFunction, TuningStrategy
from zenith_tune.study.parameters import (
    BoolParameter,
    CategoricalParameter,
    Direction,
    FloatParameter,
    IntParameter,
    Parameter,
    Value,
)
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial import Trial

__all__ = ["EvaluatorContract", "PresetContract", "RunnerContract", "ScriptedTrials", "StrategyContract"]


class EvaluatorContract(ABC):
    """The contract of an evaluator, as tests."""

    METADATA: Mapping[str, object] = {"trial_id": 1, "command": "train", "parameters": {}, "duration": 2.0}

    @abstractmethod
    def make(self) -> TuningEvaluator:
        """Return the evaluator."""

    @abstractmethod
    def good_log(self) -> str:
        """Return a log that has the value."""

    def bad_logs(self) -> list[str]:
        """Return logs that have no value."""
        return ["", "hello\n", "\x00\x1b[31m\n" * 10]

    def test_it_reads_a_finite_value(self) -> None:
        value = self.make().evaluate(self.good_log(), self.METADATA)
        assert type(value) in (int, float) and math.isfinite(value), f"a value is a finite number, not {value!r}"

    def test_the_measurement_has_the_same_value(self) -> None:
        evaluator, log = self.make(), self.good_log()
        assert evaluator.measure(log, self.METADATA).value == evaluator.evaluate(log, self.METADATA)

    def test_a_log_without_a_value_is_a_value_error(self) -> None:
        """Check what turns into a failed trial."""
        for log in self.bad_logs():
            try:
                value = self.make().evaluate(log, self.METADATA)
            except ValueError as error:
                assert str(error), "a ValueError without words explains nothing"
                assert "\n" not in str(error)
            else:
                raise AssertionError(f"{log[:40]!r} has no value, but gave {value}")

    def test_a_log_that_is_still_written_never_raises(self) -> None:
        """Check what is asked of a trial that runs: any beginning of a log may be all there is."""
        evaluator, log = self.make(), self.good_log()
        for text in (*self.bad_logs(), *(log[:end] for end in range(len(log) + 1))):
            progress = evaluator.progress(text, self.METADATA)
            assert progress is None or all(math.isfinite(value) for value in progress.values)
            assert progress is None or evaluator.shows_progress

    def test_it_has_a_direction_and_a_description(self) -> None:
        evaluator = self.make()
        assert isinstance(evaluator.direction, Direction)
        assert evaluator.describe() and "\n" not in evaluator.describe()


class PresetContract(ABC):
    """The contract of a preset."""

    @abstractmethod
    def make(self) -> TuningPreset:
        """Return the preset."""

    def command(self) -> str:
        """Return a command that the preset is made for."""
        return "python train.py --lr 0.1 'a b'"

    def _points(self, num: int = 300) -> list[dict[str, Value]]:
        space = self.make().get_search_space()
        grid = itertools.islice(itertools.product(*(p.grid(3) for p in space.values())), num)
        rng = random.Random(0)
        drawn = [{name: p.sample(rng) for name, p in space.items()} for _ in range(num)]
        return [dict(zip(space, values, strict=True)) for values in grid] + drawn

    def test_the_search_space_is_made_of_parameters(self) -> None:
        space = self.make().get_search_space()
        assert space and all(isinstance(parameter, Parameter) for parameter in space.values())

    def test_a_pruned_point_has_a_reason_in_one_line(self) -> None:
        """Check that `prune` is the truth value of `explain`."""
        preset = self.make()
        for point in self._points():
            reason = preset.explain(point)
            assert preset.prune(point) == (reason is not None)
            assert reason is None or (reason.strip() and "\n" not in reason)

    def test_some_point_is_worth_a_trial(self) -> None:
        preset = self.make()
        assert any(not preset.prune(point) for point in self._points())

    def test_applying_a_point_twice_changes_nothing_more(self) -> None:
        preset = self.make()
        for point in [point for point in self._points() if not preset.prune(point)][:20]:
            once = preset.apply_parameters(self.command(), point)
            twice = preset.apply_parameters(once, point)
            assert twice == once, f"a point applied twice must change nothing more: {once!r} became {twice!r}"
            # Variables may be set in front of it.
            assert f" {self.command().split()[0]}" in f" {once}"

    def test_the_point_of_a_command_names_every_parameter(self) -> None:
        """Check that the run of the user's own command can answer for a point."""
        preset = completed(self.make())
        own = preset.own_point(self.command())
        assert own is None or own.keys() == preset.get_search_space().keys()

    def test_it_recommends_a_strategy_and_an_evaluator_and_labels_points(self) -> None:
        preset = completed(self.make())
        assert isinstance(preset.get_recommended_strategy(), TuningStrategy)
        with contextlib.suppress(UsageError):  # a preset may leave the evaluator to its user
            assert isinstance(preset.evaluator(), TuningEvaluator)
        assert all(preset.label(point) and "\n" not in preset.label(point) for point in self._points(20))


class RunnerContract(ABC):
    """The contract of a runner, as tests; each test gets an empty folder as pytest's `tmp_path`."""

    scheduler_logs_too: bool = False
    """Whether whoever runs the job may add to its log that the job was ended."""

    @abstractmethod
    def make(self) -> Runner:
        """Return a runner."""

    def test_output_and_errors_land_in_the_log_and_the_exit_code_is_reported(self, tmp_path: Path) -> None:
        job = self.make().submit("sh -c 'echo out; echo err >&2; exit 3'", tmp_path, Resources())
        result = job.wait()
        assert (result.end, result.exit_code) == (End.EXITED, 3)
        assert sorted(job.log_path.read_text().split()) == ["err", "out"]
        assert job.poll() == result

    def test_a_job_that_runs_has_no_result_yet(self, tmp_path: Path) -> None:
        job = self.make().submit("sleep 60", tmp_path, Resources())
        assert job.poll() is None
        job.cancel()
        result = job.poll()
        assert result is not None and result.end is End.CANCELLED and result.exit_code is None

    def test_waiting_for_a_while_shows_that_the_job_still_runs(self, tmp_path: Path) -> None:
        go = tmp_path / "go"
        job = self.make().submit(f"sh -c 'while [ ! -e {go} ]; do sleep 0.05; done'", tmp_path, Resources())
        start = time.monotonic()
        assert job.wait(0.1) is None
        assert time.monotonic() - start >= 0.1
        go.touch()
        result = job.wait(500)
        assert result is not None and (result.end, result.exit_code) == (End.EXITED, 0)
        assert job.wait(0) == result

    def test_a_job_whose_output_suffices_is_stopped(self, tmp_path: Path) -> None:
        job = self.make().submit("sh -c 'echo enough; sleep 60'", tmp_path, Resources())
        while not job.log_path.exists() or not job.log_path.read_text():
            time.sleep(0.01)
        job.stop()
        result = job.wait()
        assert (result.end, result.exit_code) == (End.STOPPED, None)
        text = job.log_path.read_text()
        assert text == "enough\n" or (self.scheduler_logs_too and text.startswith("enough\n"))

    def test_a_job_that_is_over_cannot_be_stopped(self, tmp_path: Path) -> None:
        """Check that an exit code is not lost between the look and the stop."""
        job = self.make().submit("sh -c 'exit 3'", tmp_path, Resources())
        result = job.wait()
        job.stop()
        assert job.wait() == result and result.exit_code == 3

    def test_a_timeout_ends_a_job_that_is_waited_for_piece_by_piece(self, tmp_path: Path) -> None:
        job = self.make().submit("sleep 1000", tmp_path, Resources(), timeout_s=0.3)
        assert job.wait(0.05) is None
        result = job.wait(500)
        assert result is not None and result.end is End.TIMED_OUT

    def test_a_timeout_ends_the_job(self, tmp_path: Path) -> None:
        start = time.monotonic()
        result = self.make().submit("sleep 1000", tmp_path, Resources(), timeout_s=0.3).wait()
        assert result.end is End.TIMED_OUT
        assert 0.3 <= time.monotonic() - start < 500

    def test_a_timeout_ends_a_job_that_is_only_polled(self, tmp_path: Path) -> None:
        job = self.make().submit("sleep 1000", tmp_path, Resources(), timeout_s=0.2)
        deadline = time.monotonic() + 500
        while (result := job.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert result is not None and result.end is End.TIMED_OUT

    def test_an_interrupt_is_forgotten_when_the_next_study_begins(self, tmp_path: Path) -> None:
        runner = self.make()
        runner.interrupt()
        runner.reset()
        assert runner.submit("true", tmp_path, Resources()).wait().end is End.EXITED

    def test_an_interrupt_ends_the_wait(self, tmp_path: Path) -> None:
        """Check that an interrupt before the wait is not lost, nor one between two waits for a while."""
        runner = self.make()
        job = runner.submit("sleep 60", tmp_path, Resources())
        assert job.wait(0.01) is None
        runner.interrupt()
        result = job.wait(500)
        assert result is not None and result.end is End.CANCELLED

    def test_a_job_knows_its_folder(self, tmp_path: Path) -> None:
        job = self.make().submit("sh -c 'echo $ZENITHTUNE_TRIAL_FOLDER'", tmp_path, Resources())
        job.wait()
        assert job.log_path.read_text().strip() == str(tmp_path)

    def test_recovering_a_folder_where_nothing_ran_finds_nothing(self, tmp_path: Path) -> None:
        assert self.make().recover(tmp_path) is None

    def test_recovering_a_finished_job_reports_its_exit_code(self, tmp_path: Path) -> None:
        self.make().submit("sh -c 'exit 7'", tmp_path, Resources()).wait()
        result = self.make().recover(tmp_path)
        assert result is not None and (result.end, result.exit_code) == (End.EXITED, 7)

    def test_the_environment_of_the_tuner_reaches_the_job(self, tmp_path: Path) -> None:
        os.environ["ZENITHTUNE_CONTRACT"] = "a b"
        try:
            job = self.make().submit("sh -c 'echo \"$ZENITHTUNE_CONTRACT\"'", tmp_path, Resources())
            job.wait()
        finally:
            del os.environ["ZENITHTUNE_CONTRACT"]
        assert job.log_path.read_text() == "a b\n"


class ScriptedTrials(PlainFunction):
    """Answer a strategy from a function instead of from real runs, and remember what it asked."""

    def __init__(self, value: Callable[[Mapping[str, Value]], float | None], budget: int = 1000) -> None:
        super().__init__(value)
        self.points: list[dict[str, Value]] = []
        self.num_refused = 0
        """How often the strategy asked although the budget was spent."""
        self._budget = budget

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        if len(self.points) >= self._budget:
            self.num_refused += 1
            raise TrialExhausted(f"the budget of {self._budget} trials is spent")
        self.points.append(dict(params))
        return super().run(params, why)


class StrategyContract(ABC):
    """The contract of a strategy, as tests."""

    @abstractmethod
    def make(self) -> TuningStrategy:
        """Return a fresh strategy; two of them must ask the same points for the same answers."""

    def space(self) -> dict[str, Parameter]:
        """Return a space that the strategy can search."""
        return {
            "width": IntParameter(1, 9, step=2),
            "rate": FloatParameter(0.1, 10.0, log=True),
            "mode": CategoricalParameter(["a", "b"]),
            "flag": BoolParameter(),
        }

    def value(self, params: Mapping[str, Value]) -> float | None:
        """Return the value of a point; any number will do."""
        return float(len(str(sorted(params.items()))))

    def _ask(self, budget: int = 20, direction: Direction = Direction.MINIMIZE) -> ScriptedTrials:
        trials = ScriptedTrials(self.value, budget)
        try:
            self.make().optimize(trials, self.space(), direction)
        except TrialExhausted:
            assert len(trials.points) == budget, "TrialExhausted must come from the trials, not from the strategy"
        return trials

    def test_every_point_lies_in_the_search_space(self) -> None:
        space = self.space()
        points = self._ask().points
        assert points
        for point in points:
            assert list(point) == list(space)
            assert all(space[name].contains(value) for name, value in point.items()), point

    def test_the_same_answers_lead_to_the_same_points(self) -> None:
        """Check what resuming rests on: a study is replayed from its record."""
        assert self._ask().points == self._ask().points

    def test_a_spent_budget_passes_through(self) -> None:
        """Check that TrialExhausted is not swallowed: the strategy stops asking."""
        for budget in (1, 2, 3):
            trials = ScriptedTrials(self.value, budget)
            try:
                self.make().optimize(trials, self.space(), Direction.MINIMIZE)
            except TrialExhausted:
                assert trials.num_refused == 1, "it continued to ask"
            else:
                assert trials.num_refused == 0, "it swallowed TrialExhausted"

    def test_it_survives_failing_trials(self) -> None:
        trials = ScriptedTrials(lambda params: None, budget=10)
        with contextlib.suppress(TrialExhausted):
            self.make().optimize(trials, self.space(), Direction.MAXIMIZE)
        assert trials.points

    def test_one_that_ends_by_itself_does(self) -> None:
        """Check the end, and that the promised upper bound is one."""
        strategy = self.make()
        if not strategy.ends_by_itself:
            assert strategy.default_n_trials > 0
            return
        trials = ScriptedTrials(self.value, budget=100_000)
        strategy.optimize(trials, self.space(), Direction.MINIMIZE)
        bound = strategy.max_trials(self.space())
        assert bound is None or len(trials.points) <= bound
