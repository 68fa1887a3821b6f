"""Where a gain is in doubt, the user's own command and the best trial run once more before it is claimed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.presets.parts import ConfirmingRun
from zenith_tune.record.source import find_study, studies_in
from zenith_tune.report.json_lines import JsonLinesReporter
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.report.study_markdown import study_markdown
from zenith_tune.report.terminal.terminal import TerminalReporter
from zenith_tune.report.terminal.verbose import VerboseReporter
from zenith_tune.serve.study_index import listed_study
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import MAX_RERUNS, Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.tuning.confirmation import MAX_RUNS, reserved_runs
from zenith_tune.units import count

COMMAND = "sh -c 'n=$(cat {count} 2>/dev/null || echo 0); echo $((n+1)) > {count}; echo value: $(({values}))' x0"
"""Prints a value that may depend on x, its own last word, and on n, how many runs there were before."""


class LastWord(ToyPreset):
    """Put x at the end of the command, which stands for x=0 by itself."""

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        x = params["x"]
        return command.removesuffix("x0").replace("$x", str(x)) + f"x{x}"


def confirmed(
    tmp_path: Path, values: str, choices: tuple[int, ...] = (1, 2, 3), num: int | None = None, **options: Any
) -> tuple[Study, Witness]:
    witness = Witness()
    tuned(tmp_path, values, choices, num, **{"listener": witness, **options})
    assert witness.end is not None
    return witness.end.study, witness


def tuned(tmp_path: Path, values: str, choices: tuple[int, ...], num: int | None = None, **options: Any) -> None:
    command = COMMAND.replace("{count}", str(tmp_path / "count")).replace("{values}", values)
    own = command.replace("$x", "0")

    class Preset(LastWord):
        def apply_parameters(self, _: str, params: Mapping[str, Value]) -> str:
            return super().apply_parameters(command, params)

    tune(tmp_path, own, Preset(choices), **{"confirm": True, **options}).optimize(num)


SEARCHED = [(True, False), (False, False), (False, False), (False, False)]
"""Whether each run of a study of three trials is the own command, and whether it is run again."""


@pytest.mark.parametrize(
    ("gain", "reruns", "how"),
    [
        (5, [(True, True), (False, True)], "no gain"),
        (20, [(True, True), (False, True)], "confirmed"),
        (300, [(True, True)], "confirmed"),
        (4900, [], "clear"),
    ],
)
def test_what_is_in_doubt_runs_again_the_own_command_first(
    tmp_path: Path, gain: int, reruns: list[tuple[bool, bool]], how: str
) -> None:
    study, witness = confirmed(tmp_path, f"$x == 3 ? {1000 + gain} : $x == 0 ? 1000 : 900")
    assert [(trial.is_baseline, trial.is_rerun) for trial in witness.trials] == SEARCHED + reruns
    assert study.best is not None and study.best.params == {"x": 3}
    assert witness.end is not None and witness.end.verdict is not None
    assert study.is_within_noise == (how == "no gain")
    verdict = witness.end.verdict
    assert (verdict.is_confirmed, verdict.is_clear) == (how == "confirmed", how == "clear")
    assert how == "clear" or how in verdict.sentence
    speedup = 1 + gain / 1000
    assert verdict.speedup == pytest.approx(speedup)
    assert verdict.low is not None and verdict.high is not None and verdict.low < speedup < verdict.high


def test_a_machine_whose_runs_disagree_is_called_too_noisy_with_what_was_seen(tmp_path: Path) -> None:
    disagreeing = "$n == 0 ? 1000 : $n == 4 ? 400 : $n >= 5 ? 1000 : $x == 3 ? 1300 : 900"
    study, witness = confirmed(tmp_path, disagreeing.replace("$n", "n"))
    assert witness.end is not None and witness.end.verdict is not None and study.is_within_noise
    assert "too noisy" in witness.end.verdict.headline and "2.5x" in witness.end.verdict.headline


def test_the_patient_have_a_clear_gain_confirmed_too(tmp_path: Path) -> None:
    _, witness = confirmed(tmp_path, "$x == 3 ? 1900 : 1000", patience="thorough")
    assert [(trial.is_baseline, trial.is_rerun) for trial in witness.trials[4:]] == [(True, True), (False, True)]


def test_the_impatient_have_nothing_confirmed(tmp_path: Path) -> None:
    _, witness = confirmed(tmp_path, "1000 + 10 * $x", patience="quick")
    assert [(trial.is_baseline, trial.is_rerun) for trial in witness.trials] == SEARCHED


def test_what_a_study_shows_of_the_machine_is_known_to_the_next_one(tmp_path: Path) -> None:
    confirmed(tmp_path, "1000 + 100 * $x", study_name="first")
    _, witness = confirmed(tmp_path, "1000 + 100 * $x", study_name="second")
    assert [(trial.is_baseline, trial.is_rerun) for trial in witness.trials] == SEARCHED
    assert witness.end is not None and witness.end.verdict is not None and witness.end.verdict.is_clear


def screen_of(tmp_path: Path, values: str, choices: tuple[int, ...] = (1, 2, 3), **options: Any) -> str:
    stream = io.StringIO()
    tuned(tmp_path, values, choices, listener=TerminalReporter(Console(file=stream, width=100)), **options)
    return stream.getvalue()


def test_the_terminal_says_why_the_fastest_trial_lost(tmp_path: Path) -> None:
    shown = screen_of(tmp_path, "$x == 2 ? (n < 4 ? 1095 : 1050) : $x == 3 ? 1090 : 1000")
    assert "note: trial 2 measured more, but gained less when it ran again" in shown and "run: " in shown


def test_where_nothing_is_gained_there_is_nothing_to_run(tmp_path: Path) -> None:
    assert "run: " not in screen_of(tmp_path, "$x ? 900 : 1000")


def test_a_study_that_has_ended_by_itself_promises_no_trials_when_it_is_resumed(tmp_path: Path) -> None:
    assert "about 3 short trials" in screen_of(tmp_path, "$x ? 900 : 1000")
    assert "short trial" not in screen_of(tmp_path, "$x ? 900 : 1000", resume=True)


def test_repeated_runs_are_named_after_the_first_and_counted_apart(tmp_path: Path) -> None:
    stream = io.StringIO()
    reporter = VerboseReporter(Console(file=stream, width=100, highlight=False))
    tuned(tmp_path, "1000 + 20 * $x", (1, 2, 3), listener=reporter)
    shown = StudyDigest(find_study("s", output_dir=tmp_path / "out")).object()
    first, again, *_ = [trial for trial in shown["trials"] if trial["parameters"] == {"x": 3}]
    name, lines = f"{first['number']}'", stream.getvalue().splitlines()
    (started,) = [line for line in lines if line.startswith("trial ") and "(again)" in line and "x=3" in line][:1]
    assert started.split()[1] == name
    assert any(line.startswith(f"best: trial {name}, x=3") for line in lines)
    assert [line.split()[:2] for line in lines if line.lstrip().startswith("* ")] == [["*", name]]
    (counts,) = [line for line in lines if line.endswith(" ok")]
    num_again = sum(trial["rerun_of"] is not None for trial in shown["trials"])
    assert counts == f"3 trials and {count(num_again, 'repeated run')}: 3 ok"
    assert (again["name"], again["rerun_of"]) == (name, first["number"]) and "(3 trials, 0 failed)" in study_markdown(
        shown
    )
    (listed,) = [listed_study(source) for source in studies_in(tmp_path / "out")]
    assert listed.num_trials == 3


def test_a_best_that_ran_again_is_known_by_its_first_number_everywhere(tmp_path: Path) -> None:
    study, witness = confirmed(tmp_path, "1000 + 2 * $x")
    first, again, *_ = [trial for trial in study.trials if trial.params == {"x": 3}]
    assert study.best is again and study.number_of(again) == first.number and study.reruns_of(again) == [again.number]
    stored = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["best"]
    shown = StudyDigest(find_study("s", output_dir=tmp_path / "out")).object()
    stream = io.StringIO()
    assert witness.end is not None
    JsonLinesReporter(stream, Witness()).study_ended(witness.end)
    reported = json.loads(stream.getvalue())["best"]
    assert stored["number"] == reported["number"] == shown["best"] == first.number
    assert stored["reruns"] == reported["reruns"] == shown["best_reruns"] == [again.number]
    assert stored["value"] == reported["value"] == again.value and shown["best_run"] == again.number
    assert shown["best_command"] == witness.end.best_command


def test_a_cold_first_run_gives_no_gain(tmp_path: Path) -> None:
    study, witness = confirmed(tmp_path, "n == 0 ? 60 : 100")
    assert study.first_baseline is not None and study.first_baseline.value == 60
    assert study.baseline is not None and study.baseline.value == 100
    verdict = witness.end.verdict if witness.end else None
    assert verdict is not None and (verdict.speedup or 0) <= 1.0
    assert any("60" in note and "100" in note for note in witness.notes), "the drift is reported"


def test_a_value_that_does_not_hold_does_not_stay_the_best(tmp_path: Path) -> None:
    study, _ = confirmed(tmp_path, "$x == 2 ? (n < 4 ? 1005 : 900) : 1000 + $x")
    assert study.best is not None and study.best.params == {"x": 3}


@pytest.mark.parametrize("options", [{"confirm": False}, {"baseline": False}])
def test_without_a_claim_nothing_runs_again(tmp_path: Path, options: dict[str, Any]) -> None:
    _, witness = confirmed(tmp_path, "100 + $x", **options)
    assert not any(trial.is_rerun for trial in witness.trials)
    assert witness.end is not None and witness.end.verdict is not None and not witness.end.verdict.is_confirmed


def test_a_resumed_study_confirms_once(tmp_path: Path) -> None:
    confirmed(tmp_path, "100 + $x")
    _, witness = confirmed(tmp_path, "100 + $x", resume=True)
    assert witness.trials == []


def test_where_your_own_command_is_the_fastest_its_value_comes_back(tmp_path: Path) -> None:
    witness = Witness()
    command = "sh -c 'echo value: 9' x0"

    class Slower(LastWord):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return f"sh -c 'echo value: {params['x']}'"

    assert tune(tmp_path, command, Slower(), listener=witness, confirm=True).optimize() == (9.0, {})
    assert not any(trial.is_rerun for trial in witness.trials)


def test_a_spent_budget_leaves_the_gain_unconfirmed(tmp_path: Path) -> None:
    _, witness = confirmed(tmp_path, "100 + $x", max_hours=1e-9)
    assert witness.end is not None and witness.end.verdict is not None and not witness.end.verdict.is_confirmed


def test_own_command_runs_again_beside_what_a_resumed_study_finds(tmp_path: Path) -> None:
    values = "(n < 3 ? 1000 : 1030) + 10 * $x"
    choices = (1, 2, 3, 4, 5, 6)
    confirmed(tmp_path, values, choices, num=2)
    study, witness = confirmed(tmp_path, values, choices, resume=True)
    own = [trial.is_baseline for trial in witness.trials if trial.is_rerun]
    assert own[:3] == [True, False, True], "in turn"
    assert study.gain == pytest.approx(1090 / 1030 - 1)


def test_a_confirmation_that_was_cut_off_is_made_up_for(tmp_path: Path) -> None:
    # The second run of the own command, the fourth in all, fails.
    values = "$x == 0 && n == 3 ? 1/0 : $x == 1 ? 990 : 1000 + 50 * $x"
    study, witness = confirmed(tmp_path, values, choices=(1, 2))
    assert not study.own_runs[-1].ok and witness.end is not None and witness.end.verdict is not None
    assert not witness.end.verdict.is_confirmed and len(study.runs) == 4
    _, again = confirmed(tmp_path, values, choices=(1, 2), resume=True)
    assert [trial.is_baseline for trial in again.trials][:2] == [True, False]
    assert again.end is not None and again.end.verdict is not None and again.end.verdict.is_confirmed


def test_what_a_resumed_study_finds_may_be_the_best_after_all_reruns_of_the_first_run(tmp_path: Path) -> None:
    values = "$x == 6 ? 1300 : $x == 0 ? 1000 : n < 7 ? 1000 + $x : 500"
    study, _ = confirmed(tmp_path, values, (1, 2, 3, 4, 5, 6), strategy=Asks(1, 2, 3, 4, 5))
    assert sum(trial.is_rerun for trial in study.trials) == MAX_RERUNS and study.gain is not None and study.gain < 0
    study, _ = confirmed(tmp_path, values, (1, 2, 3, 4, 5, 6), strategy=Asks(1, 2, 3, 4, 5, 6), resume=True)
    assert study.best is not None and study.best.params == {"x": 6} and study.best.is_rerun


class Tight(ToyPreset):
    """Print 100 times x; a run that confirms it is out of memory where x is above `most`."""

    def __init__(self, choices: tuple[int, ...], most: int, own: int) -> None:
        super().__init__(choices)
        self._most, self._own, self._largest = most, own, max(choices)

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        folder = "{trial_folder}"
        return f"sh -c 'cat {folder}/said 2>/dev/null; echo value: {100 * int(params['x'])}'"

    def own_point(self, command: str) -> dict[str, Value]:
        return {"x": self._own}

    def confirming(self, params: Mapping[str, Value]) -> ConfirmingRun:
        x = int(params["x"])
        said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." if x > self._most else "fits"
        return ConfirmingRun(meets="the most", files={"said": said}, smaller={"x": x // 2} if x > 1 else None)

    def observe(self, trial: Trial) -> None:
        if trial.is_rerun and trial.outcome is Outcome.OOM:
            self._largest = min(self._largest, int(trial.params["x"]) - 1)

    def explain(self, params: Mapping[str, Value]) -> str | None:
        return None if int(params["x"]) <= self._largest else "out of memory"


def confirmed_tight(
    tmp_path: Path, choices: tuple[int, ...], most: int, own: int = 1, num: int | None = None, **options: Any
) -> tuple[Study, list[tuple[Value, bool, str]]]:
    witness = Witness()
    preset = Tight(choices, most, own)
    options = {"confirm": True, "listener": witness, **options}
    tune(tmp_path, f"sh -c 'echo value: {100 * own}'", preset, **options).optimize(num)
    assert witness.end is not None
    runs = [(t.params["x"], t.is_rerun, str(t.outcome)) for t in witness.trials if not t.is_baseline]
    return witness.end.study, runs


def test_what_is_out_of_memory_when_it_is_confirmed_gives_way_to_the_next_one_that_fits(tmp_path: Path) -> None:
    study, runs = confirmed_tight(tmp_path, (2, 4, 16, 8), most=4, strategy=Asks(2, 4, 16))
    # 8 was not searched, and is tried because it is the next smaller one.
    searched = [(2, False, "ok"), (4, False, "ok"), (16, False, "ok")]
    assert runs == [*searched, (16, True, "oom"), (8, False, "ok"), (8, True, "oom"), (4, True, "ok")]
    assert study.best is not None and study.best.params == {"x": 4} and study.best.is_rerun
    assert study.gain == pytest.approx(3.0) and study.baseline is not None and not study.baseline.is_rerun, "clear"
    again, runs = confirmed_tight(tmp_path, (2, 4, 16, 8), most=4, strategy=Asks(2, 4, 16), resume=True)
    assert not runs and again.best is not None and again.best.params == {"x": 4}


def test_where_nothing_smaller_is_faster_your_own_command_stays(tmp_path: Path) -> None:
    study, runs = confirmed_tight(tmp_path, (2, 4, 8), most=1, own=4)
    assert runs[-1] == (8, True, "oom") and study.fastest is study.baseline


def test_an_own_command_that_takes_as_much_as_what_is_out_of_memory_is_not_the_best(tmp_path: Path) -> None:
    class Inverse(Tight):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return super().apply_parameters(command, params).replace("value: ", "value: -")

    witness = Witness()
    preset = Inverse((1, 4, 8), 2, 16)
    preset._largest = 16
    tune(tmp_path, "sh -c 'echo value: -1600'", preset, confirm=True, listener=witness).optimize()
    assert witness.end is not None
    study = witness.end.study
    assert study.best is not None and study.best.params == {"x": 1}, "the smallest is the fastest, and fits"


ALMOST = "($x ? 1020 : 1000) + $x"
"""A gain so small that it is in doubt."""


@pytest.mark.parametrize(("num", "searched", "again"), [(1, 1, 0), (2, 2, 0), (3, 2, 1), (9, 6, 3)])
def test_the_runs_that_confirm_a_gain_count_in_the_budget(tmp_path: Path, num: int, searched: int, again: int) -> None:
    study, witness = confirmed(tmp_path, ALMOST, (1, 2, 3, 4, 5, 6), num, patience="thorough")
    runs = [trial for trial in witness.trials if trial is not study.first_baseline]
    assert [sum(not trial.is_rerun for trial in runs), sum(trial.is_rerun for trial in runs)] == [searched, again]
    assert study.num_budgeted == num
    assert again or any("not confirmed" in line for line in witness.notes)


@pytest.mark.parametrize("num", [None, 2, 7])
def test_how_far_a_study_is_has_one_bound_from_the_start_that_it_never_passes(tmp_path: Path, num: int | None) -> None:
    output = io.StringIO()
    reporter = VerboseReporter(Console(file=output, width=200), live=False)
    tuned(tmp_path, ALMOST, (1, 2, 3, 4), num, listener=reporter, patience="thorough")
    found = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of at most (\d+)", output.getvalue())]
    counts, bounds = zip(*found, strict=True)
    assert len(set(bounds)) == 1 and list(counts) == list(range(1, len(counts) + 1)) and counts[-1] <= bounds[0]


@pytest.mark.parametrize("noise", ["((n + 1) * 1999 * (n + 3)) % 997", "((n + 1) * 1999 * (n + 3)) % 389"])
def test_however_noisy_a_machine_is_no_more_runs_confirm_than_were_announced(tmp_path: Path, noise: str) -> None:
    study, _ = confirmed(tmp_path, f"1000 + $x * 20 + {noise}", (1, 2, 3, 4))
    assert study.num_trials == 4 and study.num_budgeted == study.max_trials == 4 + MAX_RUNS


def test_few_trials_leave_none_to_confirm() -> None:
    assert [reserved_runs(num) for num in (1, 2, 3, 6, 20)] == [0, 0, 1, 2, 3]
