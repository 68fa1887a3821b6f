"""The second phase of a study: levers are tried on the layout that won, and kept where they prove faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.errors import UnknownNameError
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.presets.levers import Lever, LeverChoice, LeverDeclaration, chosen_levers
from zenith_tune.record.reader import recorded_choices
from zenith_tune.record.source import find_study
from zenith_tune.report.search_digest import search_object
from zenith_tune.study.lever_results import LeverStatus, lever_table
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Params, Value
from zenith_tune.study.study import Study
from zenith_tune.tuning import watch
from zenith_tune.tuning.lever_phase import in_turn


class WithLevers(ToyPreset):
    """Print 100 times x, times what each lever of a point gives; None for one that ends in an error."""

    def __init__(self, gives: Mapping[str, float | None], levers: Sequence[Lever], choices: Sequence[Value]) -> None:
        super().__init__(choices)
        self._gives, self._levers = gives, levers

    def lever_space(self) -> dict[str, Parameter]:
        return {lever.name: CategoricalParameter((True,)) for lever in self._levers}

    def levers(self, command: str, params: Mapping[str, Value]) -> Sequence[Lever]:
        return self._levers

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        value = 100.0 * float(params["x"])
        for name in params.keys() - {"x"}:
            if self._gives[name] is None:
                return f"sh -c 'echo unknown option; exit 2' {' '.join(sorted(params))}"
            value *= self._gives[name] or 1.0
        return f"sh -c 'echo value: {value}'"


def studied(
    tmp_path: Path, gives: Mapping[str, float | None], levers: Sequence[Lever] | None = None, **options: Any
) -> tuple[list[Params], Study, Witness]:
    """Return the points that levers were tried on, without x; the best layout has x 3."""
    witness, levers = Witness(), levers or [Lever(name=name) for name in gives]
    preset = WithLevers(gives, levers, (1, 2, 3))
    tune(tmp_path, "sh -c 'echo value: 50'", preset, listener=witness, **options).optimize()
    assert witness.end is not None
    tried = [dict(trial.params) for trial in witness.trials if len(trial.params) > 1]
    assert all(point.pop("x") == 3 for point in tried), "they are tried on the best layout"
    return tried, witness.end.study, witness


def results(study: Study) -> dict[str, tuple[LeverStatus, int | None, tuple[str, ...]]]:
    """Return what became of each lever: how it ended, in which trial, beside which others."""
    return {result.lever: (result.status, result.trial, result.beside) for result in study.lever_results}


def names(tried: list[Params]) -> list[set[str]]:
    return [set(point) for point in tried]


def test_levers_that_go_together_are_tried_at_once_and_kept(tmp_path: Path) -> None:
    tried, study, witness = studied(tmp_path, {"a": 1.1, "b": 1.05})
    assert names(tried) == [{"a", "b"}]
    assert study.best is not None and study.best.params == {"x": 3, "a": True, "b": True}
    assert study.lever_speedup == pytest.approx(1.155)
    assert witness.end is not None and witness.end.verdict is not None
    assert witness.end.verdict.lever_speedup == pytest.approx(1.155)


def test_a_lever_that_fails_is_found_by_halves(tmp_path: Path) -> None:
    tried, study, _ = studied(tmp_path, {"a": 1.1, "b": 1.1, "c": None, "d": 1.1})
    assert names(tried) == [{"a", "b", "c", "d"}, {"a", "b"}, {"a", "b", "c"}, {"a", "b", "d"}]
    assert study.best is not None and study.best.params.keys() == {"x", "a", "b", "d"}


def test_what_is_not_faster_is_not_kept(tmp_path: Path) -> None:
    tried, study, _ = studied(tmp_path, {"a": 0.9, "b": 0.99})
    assert names(tried) == [{"a", "b"}, {"a"}, {"b"}]
    assert study.best is not None and study.best.params == {"x": 3} and study.lever_speedup is None


def test_a_lever_that_another_excludes_is_tried_in_its_turn(tmp_path: Path) -> None:
    levers = [Lever(name="a", excludes=frozenset({"b"})), Lever(name="b")]
    tried, study, _ = studied(tmp_path, {"a": 0.9, "b": 1.2}, levers)
    assert names(tried) == [{"a"}, {"b"}]
    assert study.best is not None and study.best.params == {"x": 3, "b": True}
    kept, study, _ = studied(tmp_path / "kept", {"a": 1.2, "b": 1.3}, levers)
    assert names(kept) == [{"a"}], "it stands in the way of the other"


def test_numerics_are_not_changed_unless_asked_for(tmp_path: Path) -> None:
    tried, study, _ = studied(tmp_path, {"fp8": 2.0}, [Lever(name="fp8", numerics=True)])
    assert not tried and results(study) == {"fp8": (LeverStatus.NOT_TRIED, None, ())}
    assert "--allow fp8" in study.lever_results[0].why


def test_what_only_frees_memory_is_not_tried_for_speed(tmp_path: Path) -> None:
    tried, _, _ = studied(tmp_path, {"offload": 0.5}, [Lever(name="offload", memory=-0.3)])
    assert not tried


def test_a_short_training_is_not_worth_a_trial_of_levers(tmp_path: Path) -> None:
    tried, _, _ = studied(tmp_path, {"a": 2.0}, train_hours=1e-6)
    assert not tried


def test_a_resumed_study_runs_no_lever_twice(tmp_path: Path) -> None:
    first, _, _ = studied(tmp_path, {"a": 1.1, "b": None})
    again, study, _ = studied(tmp_path, {"a": 1.1, "b": None}, resume=True)
    assert first and not again
    assert study.best is not None and study.best.params == {"x": 3, "a": True} and study.lever_speedup is not None


def test_names_of_levers_are_checked() -> None:
    assert chosen_levers("default", ("a", "b"), "lever") == {"a", "b"}
    assert chosen_levers("none", ("a", "b"), "lever") == set()
    assert chosen_levers("a", ("a", "b"), "lever") == {"a"}
    with pytest.raises(UnknownNameError):
        chosen_levers("a+x", ("a", "b"), "lever")


def test_what_a_study_is_resumed_with_is_its_space_without_the_levers(tmp_path: Path) -> None:
    studied(tmp_path, {"a": 1.1})
    assert recorded_choices(f"sqlite:///{tmp_path}/out/studies.db", "s") == {"x": (1, 2, 3)}


def test_what_a_machine_may_lack_has_a_trial_of_its_own(tmp_path: Path) -> None:
    levers = [Lever(name="a"), Lever(name="deep", is_alone=True), Lever(name="b")]
    tried, study, _ = studied(tmp_path, {"a": 1.1, "b": 1.1, "deep": None}, levers)
    assert names(tried) == [{"a", "b"}, {"a", "b", "deep"}]
    assert study.best is not None and study.best.params.keys() == {"x", "a", "b"}


def test_a_lever_waits_for_the_one_that_it_needs(tmp_path: Path) -> None:
    levers = [Lever(name="late", needs=frozenset({"first"})), Lever(name="first")]
    tried, _, _ = studied(tmp_path, {"late": 1.1, "first": 1.1}, levers)
    assert names(tried) == [{"first"}, {"first", "late"}]
    tried, _, _ = studied(tmp_path / "lost", {"late": 1.1, "first": 0.9}, levers)
    assert names(tried) == [{"first"}]


def test_another_value_may_replace_the_one_that_is_kept(tmp_path: Path) -> None:
    class TwoValues(WithLevers):
        def lever_space(self) -> dict[str, Parameter]:
            return {"kind": CategoricalParameter(("plain", "better"))}

        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            gives = {"plain": 1.1, "better": 1.3, None: 1.0}
            return f"sh -c 'echo value: {100.0 * float(params['x']) * gives[params.get('kind')]}'"  # type: ignore[index]

    witness = Witness()
    levers = [
        Lever(name="kind", value="plain", saves={"ep": 0.3}),
        Lever(name="kind", value="better", saves={"ep": 0.4}, is_alone=True),
    ]
    preset = TwoValues({}, levers, (1, 2, 3))
    gains = {"plain": 0.05, "better": 0.08}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zenith_tune.tuning.lever_phase.gain_of", lambda lever, shares: gains[str(lever.value)])
        tune(tmp_path, "sh -c 'echo value: 50'", preset, listener=witness).optimize()
    assert witness.end is not None and witness.end.study.best is not None
    assert witness.end.study.best.params == {"x": 3, "kind": "better"}


def test_levers_without_effect_fail_their_own_trials_and_not_the_study(tmp_path: Path) -> None:
    class Dumping(WithLevers):
        def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
            return {name: True for name in params if name != "x"}

        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            dump = " ".join(f"{name}={name == 'works'}" for name in params if name != "x")
            value = 100.0 * float(params["x"]) * (1.2 if "works" in params else 1.0)
            return f"sh -c 'echo {dump}; echo value: {value}'"

    witness = Witness()
    levers = [Lever(name=name) for name in ("a", "b", "c", "works")]
    tune(tmp_path, "sh -c 'echo value: 50'", Dumping({}, levers, (1, 2, 3)), listener=witness).optimize()
    failed = [trial for trial in witness.trials if trial.failure == FailureKind.NO_EFFECT]
    assert len(failed) >= 3 and witness.end is not None and witness.end.study.is_sound
    assert witness.end.study.best is not None and witness.end.study.best.params == {"x": 3, "works": True}


def all_tried(witness: Witness) -> list[Params]:
    return [dict(trial.params) for trial in witness.trials if trial.params]


@pytest.mark.parametrize(("num_trials", "num_layouts"), [(1, 1), (3, 3), (4, 3), (8, 6), (9, 7)])
def test_a_quarter_of_the_trials_is_left_to_levers(tmp_path: Path, num_trials: int, num_layouts: int) -> None:
    witness = Witness()
    preset = WithLevers({"a": 0.9, "b": 0.9}, [Lever(name="a"), Lever(name="b")], tuple(range(12, 0, -1)))
    tuner = tune(tmp_path, "sh -c 'echo value: 0.5'", preset, listener=witness, confirm=False)
    tuner.optimize(n_trials=num_trials)
    tried = all_tried(witness)
    assert [len(point) for point in tried[:num_layouts]] == [1] * num_layouts
    assert all(len(point) > 1 for point in tried[num_layouts:])
    assert len(tried) == num_trials, "two levers take up to three trials"


def test_trials_are_not_left_to_levers_that_nobody_wants(tmp_path: Path) -> None:
    witness = Witness()
    preset = WithLevers({"fp8": 2.0}, [Lever(name="fp8", numerics=True)], tuple(range(1, 13)))
    tune(tmp_path, "sh -c 'echo value: 0.5'", preset, listener=witness, confirm=False).optimize(n_trials=8)
    assert len(all_tried(witness)) == 8


def test_a_resumed_study_leaves_the_same_trials_to_levers(tmp_path: Path) -> None:
    levers, choices = [Lever(name="a"), Lever(name="b")], tuple(range(1, 13))
    for again in (False, True):
        witness = Witness()
        preset = WithLevers({"a": 1.1, "b": 1.1}, levers, choices)
        tune(tmp_path, "sh -c 'echo value: 0.5'", preset, listener=witness, confirm=False, resume=again).optimize(8)
        assert len(all_tried(witness)) == (0 if again else 7), "six layouts, and both levers in one trial"
        assert witness.end is not None and witness.end.study.best is not None
        assert witness.end.study.best.params.keys() == {"x", "a", "b"}


def test_levers_are_tried_where_the_search_ends_by_points_that_it_had_before(tmp_path: Path) -> None:
    witness = Witness()
    preset = WithLevers({"a": 1.1}, [Lever(name="a")], (1, 2, 3))
    tune(tmp_path, "sh -c 'echo value: 0.5'", preset, strategy="random", listener=witness, confirm=False).optimize()
    assert witness.end is not None and witness.end.study.best is not None
    assert witness.end.study.best.params == {"x": 3, "a": True}


def test_what_is_called_unstable_is_tried_on_request_alone(tmp_path: Path) -> None:
    tried, study, _ = studied(tmp_path, {"new": 2.0}, [Lever(name="new", is_unstable=True)])
    assert not tried and "--allow new" in study.lever_results[0].why


DECLARED: tuple[LeverDeclaration[None], ...] = (
    LeverDeclaration(name="plain", saves={"dp": 0.5}, source=""),
    LeverDeclaration(name="fp8", saves={"dp": 0.5}, numerics=True, source=""),
    LeverDeclaration(name="new", saves={"dp": 0.5}, is_unstable=True, source=""),
)


@pytest.mark.parametrize(
    ("levers", "allow", "tried", "named"),
    [
        ("default", "none", {"plain"}, {"fp8", "new"}),
        ("default", "fp8", {"plain", "fp8"}, {"new"}),
        ("plain", "none", {"plain"}, set()),
        ("none", "none", set(), set()),
        ("none", "fp8+new", {"fp8", "new"}, set()),
    ],
)
def test_levers_on_request_are_named_unless_the_user_chose(
    levers: str, allow: str, tried: set[str], named: set[str]
) -> None:
    choice = LeverChoice.of(levers, allow, DECLARED)
    offered = choice.offered(DECLARED, None)
    assert {lever.name for lever in offered if not lever.is_on_request} == tried
    assert {lever.name for lever in offered if lever.is_on_request} == named
    note = " ".join(choice.note(DECLARED, {"plain", "fp8", "new"}))
    assert {name for name in ("plain", "fp8", "new") if name in note} == tried | (named if tried else set())


def test_the_verdict_says_what_each_phase_and_each_group_gave(tmp_path: Path) -> None:
    levers = [Lever(name="a"), Lever(name="b"), Lever(name="fp8", numerics=True, is_allowed=True, is_alone=True)]
    _, _, witness = studied(tmp_path, {"a": 1.1, "b": 1.05, "fp8": 1.25}, levers)
    assert witness.end is not None and witness.end.verdict is not None
    verdict = witness.end.verdict
    assert verdict.layout_speedup == pytest.approx(6.0) and verdict.lever_speedup == pytest.approx(1.155 * 1.25)
    assert [(gain.levers, gain.numerics) for gain in verdict.lever_gains] == [(("a", "b"), False), (("fp8",), True)]
    assert [gain.speedup for gain in verdict.lever_gains] == pytest.approx([1.155, 1.25])
    for word in ("fp8 1.25x", "a + b"):
        assert word in verdict.sentence


def test_what_levers_gave_is_known_though_the_budget_ends_their_phase(tmp_path: Path) -> None:
    gives = {"a": 1.1, "b": 1.1, "c": 1.2}
    levers = [Lever(name="a"), Lever(name="b", is_alone=True), Lever(name="c", is_alone=True)]
    witness = Witness()
    preset = WithLevers(gives, levers, tuple(range(1, 10)))
    tune(tmp_path, "sh -c 'echo value: 0.5'", preset, listener=witness, confirm=False).optimize(n_trials=8)
    assert witness.end is not None and witness.end.verdict is not None
    assert [gain.levers for gain in witness.end.verdict.lever_gains] == [("a",), ("b",)]
    assert witness.end.verdict.lever_speedup == pytest.approx(1.21)


def test_levers_on_request_have_a_trial_of_their_own() -> None:
    (plain, fp8, _) = LeverChoice.of("default", "fp8", DECLARED).offered(DECLARED, None)
    assert fp8.is_alone and fp8.numerics and not fp8.is_on_request and not plain.is_alone


@pytest.mark.parametrize("gives", [0.9, None])
def test_what_was_asked_for_and_is_not_kept_is_named(tmp_path: Path, gives: float | None) -> None:
    levers = [Lever(name="a"), Lever(name="fp8", numerics=True, is_allowed=True, is_alone=True)]
    tried, study, _ = studied(tmp_path, {"a": 1.1, "fp8": gives}, levers)
    assert names(tried) == [{"a"}, {"a", "fp8"}] and [gain.levers for gain in study.lever_gains] == [("a",)]
    (result,) = (result for result in study.lever_results if result.lever == "fp8")
    assert result.speedup == (None if gives is None else pytest.approx(0.9))
    assert result.status == (LeverStatus.FAILED if gives is None else LeverStatus.NO_FASTER)


KEPT, NO_FASTER, FAILED, NOT_TRIED = LeverStatus


def test_a_lever_that_hangs_is_ended_and_the_next_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(WithLevers):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            text = super().apply_parameters(command, params)
            return f"sh -c 'echo waiting; sleep 60' {' '.join(sorted(params))}" if "hangs" in params else text

    monkeypatch.setattr(watch, "LEAST_SILENCE_S", 1.0)
    monkeypatch.setattr(watch, "SILENCE_MARGIN", 1.0)
    levers = [Lever(name="a"), Lever(name="hangs"), Lever(name="next", is_alone=True)]
    witness, preset = Witness(), Hanging({"a": 1.1, "hangs": 2.0, "next": 1.1}, levers, (1, 2, 3))
    tune(tmp_path, "sh -c 'echo value: 50'", preset, listener=witness).optimize()
    assert witness.end is not None and witness.end.study.best is not None
    study, best = witness.end.study, witness.end.study.best
    assert best.params == {"x": 3, "a": True, "next": True}
    hung = [trial for trial in witness.trials if "hangs" in trial.params]
    assert [trial.failure for trial in hung] == [FailureKind.SILENT], "beside what is kept by now it hung already"
    found = results(study)
    assert {name: found[name][0] for name in found} == {"a": KEPT, "hangs": FAILED, "next": KEPT}
    assert found["hangs"][1:] == (hung[-1].number, ()) and witness.end.best_command_path.exists()


def test_the_good_ones_of_a_bundle_that_fails_are_kept_though_each_saves_little(tmp_path: Path) -> None:
    gives = {"a": 1.0045, "b": 1.0045, "bad": None, "c": 1.0045}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zenith_tune.tuning.lever_phase.gain_of", lambda lever, shares: 0.004)
        tried, study, _ = studied(tmp_path, gives)
    assert names(tried)[0] == {"a", "b", "bad", "c"}
    assert study.best is not None and study.best.params.keys() == {"x", "a", "b", "c"}
    found = results(study)
    assert {name: found[name][0] for name in found} == {"a": KEPT, "b": KEPT, "bad": FAILED, "c": KEPT}
    assert found["bad"][2] == (), "it failed alone"


def test_what_gains_too_little_alone_is_tried_together(tmp_path: Path) -> None:
    levers = [Lever(name=name, is_alone=True) for name in ("a", "b", "c")]
    tried, study, _ = studied(tmp_path, {"a": 1.007, "b": 1.006, "c": 0.99}, levers)
    assert names(tried) == [{"a"}, {"b"}, {"c"}, {"a", "b"}]
    assert study.best is not None and study.best.params.keys() == {"x", "a", "b"}
    assert {name: each[0] for name, each in results(study).items()} == {"a": KEPT, "b": KEPT, "c": NO_FASTER}


def test_no_set_of_levers_is_asked_for_twice(tmp_path: Path) -> None:
    tried, study, witness = studied(tmp_path, {"a": 1.1, "b": 1.1, "c": 0.5, "d": 1.1})
    assert len({frozenset(each) for each in names(tried)}) == len(tried) and not witness.repeated
    assert results(study)["c"][0] == NO_FASTER and study.best is not None
    assert study.best.params.keys() == {"x", "a", "b", "d"}


@pytest.mark.parametrize("num_levers", [0, 1, 3])
def test_each_lever_has_a_line_in_the_report(tmp_path: Path, num_levers: int) -> None:
    gives: dict[str, float | None] = dict(list({"a": 1.1, "b": None, "c": 0.9}.items())[:num_levers])
    levers = [*(Lever(name=name) for name in gives), Lever(name="off", saves={"dp": 1.0}, missing="deep_ep")]
    tried, study, witness = studied(tmp_path, {**gives, "off": 2.0}, levers)
    assert all("off" not in each for each in tried), "what is not installed costs no trial"
    assert witness.end is not None and witness.end.verdict is not None
    assert [result.lever for result in witness.end.verdict.levers] == ["off", *gives]
    (table,) = search_object(find_study("s", output_dir=tmp_path / "out").view())["findings"]
    expected = lever_table(study.lever_results)
    assert expected is not None and [tuple(row) for row in table["rows"]] == list(expected.rows)
    assert sorted(row[0] for row in table["rows"]) == sorted(["off", *gives])


def test_a_lever_that_could_not_be_set_beside_the_others_says_so(tmp_path: Path) -> None:
    levers = [Lever(name="a", excludes=frozenset({"b"})), Lever(name="b"), Lever(name="c", needs=frozenset({"d"}))]
    _, study, _ = studied(tmp_path, {"a": 1.2, "b": 1.3, "c": 1.3}, levers)
    why = {result.lever: result.why for result in study.lever_results if result.status == NOT_TRIED}
    assert why.keys() == {"b", "c"} and "a" in why["b"].split() and "d," in why["c"].split()


def test_a_number_of_trials_that_ends_the_phase_names_what_was_not_tried(tmp_path: Path) -> None:
    levers = [Lever(name=name, is_alone=True) for name in ("a", "b", "c", "d")]
    witness = Witness()
    preset = WithLevers({"a": 1.1, "b": 1.1, "c": 1.1, "d": 1.1}, levers, tuple(range(1, 10)))
    tune(tmp_path, "sh -c 'echo value: 0.5'", preset, listener=witness).optimize(n_trials=8)
    assert witness.end is not None and witness.end.verdict is not None
    assert len(all_tried(witness)) == 8
    left = [result.lever for result in witness.end.verdict.levers if result.is_cut_off]
    assert left == ["c", "d"] and "c, d" in witness.end.verdict.sentence
    assert witness.end.study.best is not None and witness.end.study.best.params.keys() == {"x", "a", "b"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["gpu_hours", pytest.param("max_hours", marks=pytest.mark.slow)])
def test_hours_that_end_inside_the_phase_leave_the_best_so_far(tmp_path: Path, kind: str) -> None:
    class Slow(WithLevers):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            text = super().apply_parameters(command, params)
            return f"sh -c 'sleep 600 # {' '.join(params)}'" if "slow" in params else text

    levers = [Lever(name=name, is_alone=True) for name in ("a", "slow", "c")]
    budget = {kind: 15 / 3600, "train_hours": 1000.0}
    for again in (False, True):
        witness, preset = Witness(), Slow({"a": 1.1, "slow": 1.1, "c": 1.1}, levers, (1, 2, 3))
        tune(tmp_path, "sh -c 'echo value: 50'", preset, listener=witness, resume=again, **budget).optimize()
        assert witness.end is not None and witness.end.verdict is not None
        study, verdict = witness.end.study, witness.end.verdict
        assert study.best is not None and study.best.params == {"x": 3, "a": True}
        assert verdict.lever_speedup == pytest.approx(1.1), "also where nothing is left of the budget to begin with"
        assert [result.lever for result in verdict.levers if result.is_cut_off] == ["slow", "c"]
        assert len(all_tried(witness)) == (0 if again else 5), "three layouts, the first lever, and one that is cut off"


def test_what_cannot_fail_is_tried_together() -> None:
    safe, alone, unsure = Lever(name="a"), Lever(name="b", is_alone=True), Lever(name="e", is_unsure=True)
    late = Lever(name="c", needs=frozenset({"b"}))
    groups = in_turn([unsure, late, alone, safe, Lever(name="d")])
    assert [[lever.name for lever in group] for group in groups] == [["a", "d"], ["c"], ["b"], ["e"]]
