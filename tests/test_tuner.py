from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.study_tools import PRINT_X, Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import (
    CategoricalParameter,
    Direction,
    Outcome,
    Parameter,
    PresetTuner,
    RegexEvaluator,
    TuningEvaluator,
    TuningPreset,
    TuningStrategy,
)
from zenith_tune.errors import StudyError, UsageError
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.evaluators.json_lines import JsonEvaluator
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.study.parameters import Value
from zenith_tune.tuning.confirmation import MAX_RUNS


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


def test_outcomes_and_causes_are_distinguished(tmp_path: Path) -> None:
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
    options = {"timeout": 4.0, "listener": witness}
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
    with pytest.raises(UsageError, match="value:"):
        tune(tmp_path, "echo hello").optimize()


def test_three_trials_that_end_well_without_the_metric_stop_the_study(tmp_path: Path) -> None:
    witness = Witness()
    with pytest.raises(UsageError, match=r"\b3 trials\b.*value:"):
        tune(tmp_path, "echo {x}", ToyPreset(range(9)), listener=witness).optimize()
    assert len(witness.trials) == 3


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
    command = "sh -c 'case {x} in 1) sleep 1; exit 1;; 2) sleep 0.2;; 3) sleep 300;; esac; echo value: {x}'"
    start = time.monotonic()
    tune(tmp_path, command, listener=witness, timeout_dynamic=True, evaluator=DurationEvaluator()).optimize()
    assert [trial.outcome for trial in witness.trials] == ["error", "ok", "timeout"]
    assert time.monotonic() - start < 150


@pytest.mark.parametrize("direction", [Direction.MAXIMIZE, Direction.MINIMIZE])
def test_a_long_run_is_not_ended_where_no_time_is_measured(tmp_path: Path, direction: Direction) -> None:
    witness = Witness()
    command = "sh -c 'test {x} = 3 && sleep 1.5; echo score: {x}'"
    evaluator = RegexEvaluator(r"score: (\d)", direction=direction)
    tuner = tune(tmp_path, command, listener=witness, timeout_dynamic=True, evaluator=evaluator)
    tuner.optimize()
    assert [trial.outcome for trial in witness.trials] == ["ok", "ok", "ok"]
    assert any("--timeout-dynamic" in note for note in tuner.config.warnings())


@pytest.mark.parametrize(
    ("evaluator", "is_time"),
    [
        (DurationEvaluator(), True),
        (MegatronEvaluator(), True),
        (RegexEvaluator(r"Total training time: ([0-9.]+)s"), True),
        (RegexEvaluator(r"took ([0-9.]+)s$"), True),
        (RegexEvaluator(r"throughput per GPU \(TFLOP/s/GPU\): (\S+)"), True),
        (JsonEvaluator("tokens_per_s"), True),
        (RegexEvaluator(r"score: (\S+)"), False),
        (RegexEvaluator(r"loss=(\S+)"), False),
        (JsonEvaluator("eval.steps"), False),
    ],
)
def test_times_and_speeds_are_known(evaluator: TuningEvaluator, is_time: bool) -> None:
    assert evaluator.measures_time is is_time


def test_a_command_too_long_to_start_fails_its_trial_alone(tmp_path: Path) -> None:
    class Long(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return super().apply_parameters(command, params) + (f" {'x' * 3_000_000}" if params["x"] == 2 else "")

    witness = Witness()
    assert tune(tmp_path, PRINT_X, Long(), listener=witness).optimize() == (3.0, {"x": 3})
    assert [trial.outcome for trial in witness.trials] == ["ok", "error", "ok"]


@pytest.mark.parametrize(
    "command", ["cd {trial_folder} && cp {here}/run.sh . && ./run.sh {x}", "PATH={here}:$PATH run.sh {x}"]
)
def test_a_program_found_only_where_the_command_goes_is_not_refused(tmp_path: Path, command: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho value: $1\n")
    script.chmod(0o755)
    assert tune(tmp_path, command.replace("{here}", str(tmp_path))).optimize() == (3.0, {"x": 3})


def test_a_folder_of_a_study_that_the_database_does_not_have_is_refused(tmp_path: Path) -> None:
    tune(tmp_path, db_path=str(tmp_path / "one.db")).optimize()
    before = (tmp_path / "out/s/study.json").read_text()
    for resume in (False, True):
        with pytest.raises(StudyError, match=r"out/s .*sqlite:///.*two\.db"):
            tune(tmp_path, "sh -c 'echo value: 7'", db_path=str(tmp_path / "two.db"), resume=resume).optimize()
    assert (tmp_path / "out/s/study.json").read_text() == before
    assert (tmp_path / "out/s/trials/0000/log.txt").read_text() == "value: 1\n"


@pytest.mark.parametrize(
    "statement",
    [
        "update trial_user_attributes set value_json = '{'",
        "update trial_params set param_value = 99",
        "update trials set state = 'BOGUS'",
        "update trial_values set value = null, value_type = 'INF_POS'",
        "update study_user_attributes set value_json = '{'",
    ],
)
def test_a_study_whose_database_was_changed_is_refused_in_one_line_and_closed(tmp_path: Path, statement: str) -> None:
    tune(tmp_path).optimize()
    database = tmp_path / "out" / "studies.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement)
    with pytest.raises(StudyError, match="study 's'"):
        tune(tmp_path, resume=True).optimize()
    assert database not in [file.resolve() for file in Path("/proc/self/fd").iterdir()]


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


def test_a_study_whose_own_command_fails_stops_before_the_first_trial(tmp_path: Path) -> None:
    class Ignored(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return f"{command} {params['x']}"

    witness = Witness()
    command = "sh -c 'echo RuntimeError: no such file; exit 1'"
    assert tune(tmp_path, command, Ignored(range(9)), listener=witness).optimize() == (None, None)
    assert len(witness.trials) == 1, "the baseline alone"
    assert witness.end is not None and mentions(witness.end.why, "RuntimeError: no such file")


def test_without_a_baseline_three_trials_that_fail_alike_for_no_fault_of_their_layout_are_enough(
    tmp_path: Path,
) -> None:
    class Ignored(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return f"{command} {params['x']}"

    witness = Witness()
    command = "sh -c 'echo \"TypeError: unsupported operand type(s) for //\"; exit 1'"
    assert tune(tmp_path, command, Ignored(range(9)), listener=witness, baseline=False).optimize() == (None, None)
    assert len(witness.trials) == 3
    assert witness.end is not None and mentions(witness.end.why, "3 trials", "TypeError")


def test_trials_that_a_rule_of_their_layout_refuses_alike_do_not_end_a_study(tmp_path: Path) -> None:
    class Refused(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return command.replace("base", str(params["x"]))

    message = "AssertionError: heads must be divisible by tensor-model-parallel-size"
    command = f"sh -c '[ base = 6 ] && echo value: 6 || {{ echo {message}; exit 1; }}'"
    assert tune(tmp_path, command, Refused(range(7)), baseline=False).optimize() == (6.0, {"x": 6})


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
    [reason] = witness.pruned
    assert mentions(reason, "Four")
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
    assert mentions(witness.trials[1].cause, "TFLOP/s/GPU", "iterations/s")


def test_trials_that_fail_unlike_one_another_do_not_stop_the_study(tmp_path: Path) -> None:
    class RunHints(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return command.replace("base", str(params["x"]))

    command = "sh -c 'echo RuntimeError: not with base; [ base = 5 ] && echo value: 5'"
    assert tune(tmp_path, command, RunHints(range(6)), baseline=False).optimize() == (5.0, {"x": 5})


def test_a_program_that_does_not_take_the_options_stops_the_study(tmp_path: Path) -> None:
    witness = Witness()
    command = "sh -c 'echo x: error: unrecognized arguments: --x {x}; exit 2'"
    assert tune(tmp_path, command, ToyPreset(range(9)), listener=witness).optimize() == (None, None)
    assert len(witness.trials) == 3


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


@pytest.mark.parametrize(
    ("options", "is_asked"),
    [
        ({}, False),
        ({"max_memory": 1e9}, False),
        ({"price": 2.0, "gpus_per_trial": 1}, False),
        ({"headroom": 0.1}, True),
        ({"price": 2.0}, True),
        ({"gpu_hours": 2.0}, True),
    ],
    ids=["nothing needs it", "a size", "the GPUs are known", "a share of the memory", "a price", "GPU-hours"],
)
def test_model_and_cluster_are_looked_up_before_the_first_trial_only_where_something_needs_them(
    tmp_path: Path, options: dict[str, Any], is_asked: bool
) -> None:
    asked: list[str] = []

    class LooksUp(ToyPreset):
        def subject(self, command: str) -> None:
            asked.append(command)

    class Listens(Witness):
        num_asked = -1

        def trial_started(self, *args: Any, **kwargs: Any) -> None:
            self.num_asked = len(asked)

    witness = Listens()
    tune(tmp_path, preset=LooksUp([1]), listener=witness, **options).optimize()
    assert bool(witness.num_asked) is is_asked


def test_an_empty_log_names_the_file_that_the_output_went_to(tmp_path: Path) -> None:
    command = f"sh -c 'echo value: {{x}} > {tmp_path}/run.log'"
    witness = Witness()
    with pytest.raises(UsageError):
        tune(tmp_path, command, listener=witness).optimize()
    assert all(f"{tmp_path}/run.log" in (trial.cause or "") for trial in witness.trials)


@pytest.mark.parametrize(
    ("command", "preset", "told"),
    [
        ("bash train.sh", "megatron", ["{tp}", "{pp}"]),
        ("TP={tp} bash train.sh", "megatron", []),  # all others stay as they are
        ("TP={tp} MBS={mbs} bash train.sh", "demo", ["{recompute}"]),
        ("TP={tp} MBS={mbs} R={recompute} bash train.sh", "demo", []),
    ],
)
def test_a_template_is_told_of_the_placeholders_that_it_lacks(
    command: str, preset: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("python train.py > log --lr 1\n")  # it is not opened
    config = PresetTuner(command, preset, tune_args={"n_gpus": "8", "gbs": "16"}).config
    warnings = [note for note in config.warnings() if "pass its arguments on" in note]
    assert warnings == config.line_warnings() and len(warnings) == bool(told)
    assert all(name in warning for warning in warnings for name in told)
    assert not any("{tp}" in warning for warning in warnings if "{tp}" in command)


def test_the_estimate_has_the_expected_number_of_trials_and_the_most(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("echo throughput per GPU: 1\n")
    witness = Witness()
    tuner = PresetTuner(
        f"bash {script}",
        "megatron",
        tune_args={"n_gpus": "4", "gbs": "16", "mbs_max": "2"},
        evaluator=RegexEvaluator("throughput per GPU: (.*)"),
        output_dir=tmp_path / "out",
        listener=witness,
    )
    strategy, space = tuner.strategy, tuner.preset.get_search_space()
    expected, most = strategy.expected_trials(space), strategy.max_trials(space)
    assert expected is not None and most is not None and 6 < expected < most
    tuner.optimize()
    (outlook,) = [note for note in witness.notes if "short trials" in note]
    assert mentions(outlook, f"{expected} short trials", f"{most + MAX_RUNS} runs"), "with what confirms a gain"
