from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.toy_preset import ToyPreset
from zenith_tune import (
    CategoricalParameter,
    Direction,
    Outcome,
    Parameter,
    PresetTuner,
    RegexEvaluator,
    Trial,
    TuningPreset,
    TuningStrategy,
)
from zenith_tune.errors import StudyError, UsageError
from zenith_tune.evaluation import Limits
from zenith_tune.evaluators.base import Measurement
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.evaluators.megatron import MegatronEvaluator
from zenith_tune.events import StudyEnd, StudyListener
from zenith_tune.parameters import Value
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study import Study
from zenith_tune.timeouts import Timeouts

PRINT_X = "sh -c 'echo value: {x}'"


class Witness(StudyListener):
    """Remember what a study told."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.recalled: list[Trial] = []
        self.repeated: list[Trial] = []
        self.pruned: list[str] = []
        self.notes: list[str] = []
        self.end: StudyEnd | None = None

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        self.trials.append(trial)

    def trial_recalled(self, trial: Trial, label: str) -> None:
        self.recalled.append(trial)

    def point_repeated(self, trial: Trial, label: str) -> None:
        self.repeated.append(trial)

    def point_pruned(self, params: Mapping[str, Value], label: str, reason: str) -> None:
        self.pruned.append(reason)

    def noted(self, line: str) -> None:
        self.notes.append(line)

    def study_ended(self, end: StudyEnd) -> None:
        self.end = end


def tune(tmp_path: Path, command: str = PRINT_X, preset: ToyPreset | None = None, **options: Any) -> PresetTuner:
    options.setdefault("listener", Witness())
    options.setdefault("study_name", "s")
    return PresetTuner(command, preset or ToyPreset(), output_dir=tmp_path / "out", **options)


class Asks(TuningStrategy):
    """Ask for given points, in order, and remember the answers."""

    ends_by_itself = False

    def __init__(self, *points: Value) -> None:
        self.points = points
        self.answers: list[Trial] = []

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self.answers = []
        for x in self.points:
            self.answers.append(eval_fn.run({"x": x}))


def test_the_best_value_and_its_parameters_come_back(tmp_path: Path) -> None:
    assert tune(tmp_path).optimize() == (3.0, {"x": 3})


def test_a_minimising_evaluator_finds_the_smallest(tmp_path: Path) -> None:
    assert tune(tmp_path, evaluator=RegexEvaluator(r"value: (\S+)")).optimize() == (1.0, {"x": 1})


def test_every_trial_has_a_folder_with_its_command_parameters_log_and_outcome(tmp_path: Path) -> None:
    tune(tmp_path).optimize()
    folder = tmp_path / "out" / "s" / "trials" / "0001"
    assert (folder / "command.sh").read_text() == "#!/usr/bin/env bash\nsh -c 'echo value: 2'\n"
    assert (folder / "log.txt").read_text() == "value: 2\n"
    trial = json.loads((folder / "trial.json").read_text())
    assert (trial["parameters"], trial["outcome"], trial["value"]) == ({"x": 2}, "ok", 2.0)


def test_a_crashed_trial_is_never_best_however_short_it_was(tmp_path: Path) -> None:
    command = "sh -c '[ {x} = 1 ] && exit 1; sleep 0.2'"
    _, best = tune(tmp_path, command, evaluator=DurationEvaluator()).optimize()
    assert best is not None and best["x"] != 1


def test_a_trial_that_printed_a_value_and_then_crashed_is_never_best(tmp_path: Path) -> None:
    assert tune(tmp_path, "sh -c 'echo value: {x}; [ {x} -lt 3 ]'").optimize() == (2.0, {"x": 2})


def test_when_nothing_goes_well_there_is_no_best(tmp_path: Path) -> None:
    assert tune(tmp_path, "sh -c 'echo value: {x}; exit 1'").optimize() == (None, None)


def test_outcomes_and_causes_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "case $1 in\n"
        "1) echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'; exit 1;;\n"
        "2) echo 'ValueError: tp must divide heads' >&2; exit 1;;\n"
        "3) sleep 1000;;\n"
        "4) echo nothing to see;;\n"
        "5) echo value: nan;;\n"
        "6) echo value: 6;;\n"
        "esac\n"
    )
    witness = Witness()
    options = {"timeouts": Timeouts(fixed_s=4), "listener": witness}
    assert tune(tmp_path, f"bash {script} {{x}}", ToyPreset(range(1, 7)), **options).optimize() == (6.0, {"x": 6})
    found = {trial.params["x"]: (trial.outcome, trial.cause) for trial in witness.trials}
    assert [found[x][0] for x in range(1, 7)] == ["oom", "error", "timeout", "error", "error", "ok"]
    assert "out of memory" in str(found[1][1])
    assert "tp must divide heads" in str(found[2][1])
    assert "value:" in str(found[4][1])
    assert "nan" in str(found[5][1]).lower()


def test_an_out_of_memory_behind_a_pipe_inside_a_script_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("echo 'RuntimeError: CUDA out of memory. Tried to allocate 1 GiB' | tee /dev/null\n")
    witness = Witness()
    tune(tmp_path, f"bash {script} {{x}}", ToyPreset([1]), listener=witness).optimize()
    assert witness.trials[0].outcome is Outcome.OOM


def test_your_own_command_runs_first_and_the_gain_is_over_it(tmp_path: Path) -> None:
    class Appends(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return command.replace("2", str(params["x"]))

    witness = Witness()
    tune(tmp_path, "sh -c 'echo value: 2'", Appends([1, 4]), listener=witness).optimize()
    assert [trial.is_baseline for trial in witness.trials] == [True, False, False]
    assert witness.end is not None and witness.end.study.gain == 1.0
    assert witness.end.best_command == "sh -c 'echo value: 4'"


def test_without_a_baseline_none_runs(tmp_path: Path) -> None:
    witness = Witness()
    tune(tmp_path, "echo value: 2", baseline=False, listener=witness).optimize()
    assert not any(trial.is_baseline for trial in witness.trials)


def test_a_command_that_ends_well_without_the_metric_stops_the_study(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ran to its end, but .*value:"):
        tune(tmp_path, "echo hello").optimize()


def test_three_trials_that_end_well_without_the_metric_stop_the_study(tmp_path: Path) -> None:
    witness = Witness()
    with pytest.raises(UsageError, match="first 3 trials"):
        tune(tmp_path, "echo {x}", ToyPreset(range(9)), listener=witness).optimize()
    assert len(witness.trials) == 3


def test_the_budget_counts_runs_and_neither_repeats_nor_prunes(tmp_path: Path) -> None:
    witness = Witness()
    strategy = Asks(1, 1, 9, 2, 1, 3, 4, 5)
    preset = ToyPreset(range(1, 10), illegal=[9])
    tune(tmp_path, PRINT_X, preset, strategy=strategy, listener=witness).optimize(n_trials=3)
    assert [trial.params["x"] for trial in witness.trials] == [1, 2, 3]
    assert [trial.params["x"] for trial in witness.repeated] == [1, 1]
    assert witness.pruned == ["x must not be 9"]
    assert witness.end is not None and "budget of 3 trials is spent" in witness.end.why


def test_a_repeated_point_is_answered_from_the_record(tmp_path: Path) -> None:
    strategy = Asks(2, 2)
    tune(tmp_path, strategy=strategy).optimize()
    assert [(answer.outcome, answer.value) for answer in strategy.answers] == [("ok", 2.0), ("duplicate", 2.0)]


def test_a_repeated_failure_is_a_failure_again(tmp_path: Path) -> None:
    strategy = Asks(2, 2)
    tune(tmp_path, "false {x}", strategy=strategy).optimize()
    assert [answer.value for answer in strategy.answers] == [None, None]


def test_too_many_repeats_in_a_row_stop_the_strategy(tmp_path: Path) -> None:
    witness = Witness()
    strategy = Asks(*[1] * 10)
    tune(tmp_path, strategy=strategy, listener=witness, limits=Limits(consecutive_duplicates=4)).optimize()
    assert len(strategy.answers) == 5
    assert witness.end is not None and "4 points in a row had been tried" in witness.end.why


def test_too_many_prunes_in_a_row_stop_the_strategy(tmp_path: Path) -> None:
    witness = Witness()
    strategy = Asks(*[2] * 10)
    preset, limits = ToyPreset(illegal=[2]), Limits(consecutive_prunes=4)
    tune(tmp_path, preset=preset, strategy=strategy, listener=witness, limits=limits).optimize()
    assert len(strategy.answers) == 4
    assert witness.end is not None and "4 pruned points in a row" in witness.end.why


def test_a_point_outside_the_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="x must lie in"):
        tune(tmp_path, strategy=Asks(77)).optimize()


def test_repeats_give_the_median_and_the_spread_between_runs(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    command = f"bash -c 'echo {{x}} >> {counter}; n=$(wc -l < {counter}); echo value: $((10 * n))'"
    witness = Witness()
    tune(tmp_path, command, ToyPreset([1]), repeats=3, listener=witness).optimize()
    assert (witness.trials[0].value, witness.trials[0].spread) == (20.0, 0.5)
    assert sorted(p.name for p in (tmp_path / "out/s/trials/0000").glob("run-*")) == ["run-1", "run-2", "run-3"]


def test_one_failing_repeat_fails_the_trial_and_spares_the_rest(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    command = f"bash -c 'echo {{x}} >> {counter}; [ $(wc -l < {counter}) = 1 ] && echo value: 1'"
    assert tune(tmp_path, command, ToyPreset([1]), repeats=5).optimize() == (None, None)
    assert counter.read_text() == "1\n1\n"


def test_the_dynamic_timeout_follows_the_best_and_waits_for_the_first_success(tmp_path: Path) -> None:
    witness = Witness()
    command = "sh -c 'case {x} in 1) sleep 1; exit 1;; 2) sleep 0.2;; 3) sleep 30;; esac; echo value: {x}'"
    start = time.monotonic()
    tune(tmp_path, command, listener=witness, timeouts=Timeouts(dynamic=True)).optimize()
    assert [trial.outcome for trial in witness.trials] == ["error", "ok", "timeout"]
    assert time.monotonic() - start < 15


def test_an_existing_study_is_not_touched_without_resume(tmp_path: Path) -> None:
    tune(tmp_path).optimize()
    with pytest.raises(StudyError, match="--resume"):
        tune(tmp_path).optimize()


def test_a_resumed_study_recalls_what_is_finished_and_runs_the_rest(tmp_path: Path) -> None:
    tune(tmp_path).optimize(n_trials=2)
    witness = Witness()
    assert tune(tmp_path, resume=True, listener=witness).optimize() == (3.0, {"x": 3})
    assert [trial.params["x"] for trial in witness.recalled] == [1, 2]
    assert [trial.params["x"] for trial in witness.trials] == [3]


def test_the_budget_of_a_resumed_study_is_the_whole_studys(tmp_path: Path) -> None:
    tune(tmp_path, preset=ToyPreset(range(1, 9))).optimize(n_trials=2)
    witness = Witness()
    tune(tmp_path, preset=ToyPreset(range(1, 9)), resume=True, listener=witness).optimize(n_trials=5)
    assert len(witness.trials) == 3


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    tuner = tune(tmp_path, preset=ToyPreset(range(1, 9)))
    assert tuner.optimize(n_trials=2) == (2.0, {"x": 2})
    assert tuner.optimize(n_trials=4) == (4.0, {"x": 4})


def test_a_resumed_random_study_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    preset = ToyPreset(range(100))
    whole, parts = Witness(), Witness()
    tune(tmp_path / "a", preset=preset, strategy="random", listener=whole).optimize(n_trials=8)
    for n_trials in (3, 8):
        tuner = tune(tmp_path / "b", preset=preset, strategy="random", resume=True, listener=parts)
        tuner.optimize(n_trials=n_trials)
    assert [trial.params for trial in parts.trials] == [trial.params for trial in whole.trials]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"command": "sh -c 'echo value: {x}0'"}, "command"),
        ({"evaluator": RegexEvaluator(r"value: (\S+)")}, "evaluator"),
    ],
)
def test_a_study_of_another_kind_is_not_resumed(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    tune(tmp_path).optimize()
    with pytest.raises(StudyError, match=f"was made with {named}"):
        tune(tmp_path, resume=True, **change).optimize()


def test_resuming_a_study_that_never_began_begins_it_and_says_so(tmp_path: Path) -> None:
    witness = Witness()
    assert tune(tmp_path, resume=True, listener=witness).optimize() == (3.0, {"x": 3})
    assert witness.notes == ["there is no study 's' to resume: it begins now"]


def test_submitted_points_come_back_as_trials(tmp_path: Path) -> None:
    class Parallel(TuningStrategy):
        ends_by_itself = True

        def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
            futures = [eval_fn.submit({"x": x}) for x in (1, 2, 2, 3)]
            self.values = [future.result(timeout=30).value for future in futures]

    strategy = Parallel()
    assert tune(tmp_path, strategy=strategy).optimize() == (3.0, {"x": 3})
    assert strategy.values == [1.0, 2.0, 2.0, 3.0]


class Submits(TuningStrategy):
    """Submit given points at once and do not wait for them."""

    ends_by_itself = True

    def __init__(self, *points: int) -> None:
        self.points = points
        self.futures: list[Future[Trial]] = []

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self.futures = [eval_fn.submit({"x": x}) for x in self.points]


def test_what_was_submitted_runs_to_its_end(tmp_path: Path) -> None:
    witness = Witness()
    assert tune(tmp_path, strategy=Submits(1, 2, 3), listener=witness).optimize() == (3.0, {"x": 3})
    assert len(witness.trials) == 3


def test_a_spent_budget_does_not_drop_what_was_submitted_before(tmp_path: Path) -> None:
    witness = Witness()
    tune(tmp_path, strategy=Submits(1, 2, 3), listener=witness).optimize(n_trials=2)
    assert [trial.params["x"] for trial in witness.trials] == [1, 2]
    assert witness.end is not None and "budget of 2 trials is spent" in witness.end.why


def test_an_error_in_a_submitted_trial_ends_the_study(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="first 3 trials"):
        tune(tmp_path, "echo {x}", ToyPreset(range(4)), strategy=Submits(0, 1, 2, 3)).optimize()


def test_trials_never_overlap_on_a_runner_with_one_slot(tmp_path: Path) -> None:
    class Mixes(TuningStrategy):
        ends_by_itself = True

        def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
            eval_fn.submit({"x": 1})
            eval_fn.run({"x": 2})

    log = tmp_path / "log"
    tune(
        tmp_path, f"sh -c 'echo s >> {log}; sleep 0.3; echo e >> {log}; echo value: {{x}}'", strategy=Mixes()
    ).optimize()
    assert log.read_text().split() == ["s", "e", "s", "e"]


def test_a_cancelled_trial_does_not_run_and_costs_nothing(tmp_path: Path) -> None:
    class Cancels(Submits):
        def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
            super().optimize(eval_fn, search_space, direction)
            assert self.futures[1].cancel()
            self.futures[0].result()
            self.futures.append(eval_fn.submit({"x": 3}))

    witness = Witness()
    command = "sh -c 'sleep 0.3; echo value: {x}'"
    tune(tmp_path, command, strategy=Cancels(1, 2), listener=witness).optimize(n_trials=2)
    assert sorted(int(trial.params["x"]) for trial in witness.trials) == [1, 3]


def test_a_command_too_long_to_start_fails_its_trial_alone(tmp_path: Path) -> None:
    class Long(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return super().apply_parameters(command, params) + (" x" * 2_000_000 if params["x"] == 2 else "")

    witness = Witness()
    assert tune(tmp_path, PRINT_X, Long(), listener=witness).optimize() == (3.0, {"x": 3})
    assert [trial.outcome for trial in witness.trials] == ["ok", "error", "ok"]


def test_a_retried_failure_is_replaced_by_its_success(tmp_path: Path) -> None:
    command = f"sh -c '[ -e {tmp_path}/go ] && echo value: {{x}}'"
    tune(tmp_path, command, ToyPreset([1, 2])).optimize()
    (tmp_path / "go").touch()
    tune(tmp_path, command, ToyPreset([1, 2]), resume=True, retry_failed=True).optimize()
    witness = Witness()
    tune(tmp_path, command, ToyPreset([1, 2]), resume=True, listener=witness).optimize()
    assert witness.end is not None and [t.outcome for t in witness.end.study.trials] == ["ok", "ok"]


def test_retrying_goes_with_resuming(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--resume"):
        tune(tmp_path, retry_failed=True)


def test_a_study_is_not_resumed_with_other_choices(tmp_path: Path) -> None:
    tune(tmp_path, preset=ToyPreset([1, 2])).optimize()
    with pytest.raises(StudyError, match="another search space"):
        tune(tmp_path, preset=ToyPreset([1, 2, 3]), resume=True).optimize()


def test_an_interrupted_baseline_runs_again(tmp_path: Path) -> None:
    class Plain(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return "echo value: 5"

    class StopsAtOnce(Witness):
        def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, "sh -c 'sleep 1; echo value: 1'", Plain([1]), listener=StopsAtOnce()).optimize()
    witness = Witness()
    tune(tmp_path, "sh -c 'sleep 1; echo value: 1'", Plain([1]), resume=True, listener=witness).optimize()
    assert [trial.is_baseline for trial in witness.trials] == [True, False]


@pytest.mark.parametrize("extra", [{"a": float("nan")}, {"a": object()}, {"outcome": "odd", "cause": "none"}])
def test_whatever_an_evaluator_adds_the_study_can_be_resumed(tmp_path: Path, extra: dict[str, Any]) -> None:
    class Adds(RegexEvaluator):
        def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
            return Measurement(value=self.evaluate(stdout, metadata), extra=extra)

    preset, evaluator, witness = ToyPreset([1, 2]), Adds(r"value: (\S+)"), Witness()
    tune(tmp_path, preset=preset, evaluator=evaluator).optimize()
    tune(tmp_path, preset=preset, evaluator=evaluator, resume=True, listener=witness).optimize()
    assert len(witness.recalled) == 2


@pytest.mark.parametrize(
    "command", ["cd {trial_folder} && cp {here}/run.sh . && ./run.sh {x}", "PATH={here}:$PATH run.sh {x}"]
)
def test_a_program_found_only_where_the_command_goes_is_not_refused(tmp_path: Path, command: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho value: $1\n")
    script.chmod(0o755)
    assert tune(tmp_path, command.replace("{here}", str(tmp_path))).optimize() == (3.0, {"x": 3})


def test_csv_and_json_hold_every_trial(tmp_path: Path) -> None:
    import csv

    tune(tmp_path).optimize()
    study = json.loads((tmp_path / "out/s/study.json").read_text())
    assert [trial["value"] for trial in study["trials"]] == [1.0, 2.0, 3.0]
    assert (study["best"]["parameters"], study["best_command"]) == ({"x": 3}, "sh -c 'echo value: 3'")
    with (tmp_path / "out/s/trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["x"], row["outcome"], row["value"]) for row in rows] == [
        *(("1", "ok", "1.0"), ("2", "ok", "2.0"), ("3", "ok", "3.0"))
    ]


def test_a_study_in_which_your_own_command_fails_like_every_trial_stops(tmp_path: Path) -> None:
    class Ignored(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return f"{command} {params['x']}"

    witness = Witness()
    command = "sh -c 'echo RuntimeError: no such file; exit 1'"
    assert tune(tmp_path, command, Ignored(range(9)), listener=witness).optimize() == (None, None)
    assert len(witness.trials) == 4, "the baseline and three trials"
    assert witness.end is not None and "failed alike: RuntimeError: no such file" in witness.end.why


def test_a_study_in_which_everything_runs_out_of_memory_at_first_goes_on(tmp_path: Path) -> None:
    class Larger(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return command.replace("base", str(params["x"]))

    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    command = f"sh -c '[ base = 6 ] && echo value: 6 || {{ echo {oom}; exit 1; }}'"
    assert tune(tmp_path, command, Larger(range(7))).optimize() == (6.0, {"x": 6})


def test_a_preset_of_the_four_documented_methods_is_enough(tmp_path: Path) -> None:
    class Four(TuningPreset):
        def get_search_space(self) -> dict[str, Parameter]:
            return {"x": CategoricalParameter([1, 2])}

        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return f"{command} {params['x']}"

        def prune(self, params: Mapping[str, Value]) -> bool:
            return params["x"] == 2

        def get_recommended_strategy(self) -> TuningStrategy:
            return Asks(1, 2)

    witness = Witness()
    options: dict[str, Any] = {"output_dir": tmp_path / "out", "listener": witness}
    tuner = PresetTuner("echo value:", Four(), None, RegexEvaluator(r"value: (\S+)"), baseline=False, **options)
    assert tuner.optimize() == (1.0, {"x": 1})
    assert witness.pruned == ["pruned by Four"]
    with pytest.raises(UsageError, match="--objective"):
        PresetTuner("echo value:", Four(), **options)


def test_a_value_in_another_unit_is_not_compared(tmp_path: Path) -> None:
    line = " iteration {n}/ 3 | elapsed time per iteration (ms): 100.0 |{rate} lm loss: 1.0 |"
    plain = "\\n".join(line.format(n=n, rate="") for n in (1, 2, 3))
    rated = "\\n".join(line.format(n=n, rate=" throughput per GPU (TFLOP/s/GPU): 300.0 |") for n in (1, 2, 3))
    script = tmp_path / "train.sh"
    script.write_text(f"[ $1 = 2 ] && printf '{rated}' || printf '{plain}'\n")
    witness = Witness()
    evaluator = MegatronEvaluator()
    assert tune(tmp_path, f"bash {script} {{x}}", evaluator=evaluator, listener=witness).optimize() == (10.0, {"x": 1})
    assert [trial.outcome for trial in witness.trials] == ["ok", "error", "ok"]
    assert "TFLOP/s/GPU, but those before it are in iterations/s" in str(witness.trials[1].cause)


def test_trials_that_fail_unlike_your_own_command_do_not_stop_the_study(tmp_path: Path) -> None:
    class Told(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return command.replace("base", str(params["x"]))

    command = "sh -c 'echo RuntimeError: not with base; [ base = 5 ] && echo value: 5'"
    assert tune(tmp_path, command, Told(range(6))).optimize() == (5.0, {"x": 5})


def test_a_program_that_does_not_take_the_options_stops_the_study(tmp_path: Path) -> None:
    witness = Witness()
    command = "sh -c 'echo x: error: unrecognized arguments: --x {x}; exit 2'"
    assert tune(tmp_path, command, ToyPreset(range(9)), listener=witness).optimize() == (None, None)
    assert len(witness.trials) == 3


def test_failed_trials_are_kept_on_resume_and_run_again_when_asked(tmp_path: Path) -> None:
    command = f"sh -c '[ -e {tmp_path}/go ] && echo value: {{x}}'"
    assert tune(tmp_path, command, ToyPreset([1, 2])).optimize() == (None, None)
    (tmp_path / "go").touch()
    assert tune(tmp_path, command, ToyPreset([1, 2]), resume=True).optimize() == (None, None)
    assert tune(tmp_path, command, ToyPreset([1, 2]), resume=True, retry_failed=True).optimize() == (2.0, {"x": 2})


def test_an_empty_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        tune(tmp_path, "  ")


def test_a_program_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no_such_program"):
        tune(tmp_path, "no_such_program {x}").optimize()
    assert not (tmp_path / "out").exists()


def test_the_trial_folder_placeholder_is_each_trials_own_folder(tmp_path: Path) -> None:
    tune(tmp_path, "sh -c 'echo value: {x} > {trial_folder}/mine; cat {trial_folder}/mine'").optimize()
    assert (tmp_path / "out/s/trials/0002/mine").read_text() == "value: 3\n"
