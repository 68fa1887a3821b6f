"""ms-swift under preset megatron with folding: its spellings, its versions, and interleaved pipelines."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.presets.points import PLAIN
from tests.study_tools import Witness
from zenith_tune import Direction, Parameter, PresetTuner, TuningStrategy
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.documented.dialect import INTERLEAVING, swift_version, with_underscores
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Params

FOLDING = MegatronPreset(n_gpus=8, gbs=16, folding=True)
DENSE: Params = {**PLAIN, "tp": 2}


def interleaved(**args: int) -> MegatronPreset:
    return MegatronPreset(n_gpus=8, gbs=16, folding=True, vp_max=4, **args)  # type: ignore[arg-type]


def test_a_command_without_a_spelling_gets_ms_swifts_own() -> None:
    edited = FOLDING.apply_parameters("NPROC_PER_NODE=8 megatron sft --model x", DENSE)
    added = edited.removeprefix("NPROC_PER_NODE=8 megatron sft --model x ").split()
    assert [name for name in added[::2] if "-" in name[2:]] == []
    assert dict(zip(added[::2], added[1::2], strict=True)) == {
        "--tensor_model_parallel_size": "2",
        "--pipeline_model_parallel_size": "1",
        "--context_parallel_size": "1",
        "--expert_model_parallel_size": "1",
        "--expert_tensor_parallel_size": "1",
        "--micro_batch_size": "1",
        "--global_batch_size": "16",
        "--recompute_granularity": "full",
        "--recompute_method": "uniform",
        "--recompute_num_layers": "1",
        "--vit_gradient_checkpointing": "true",
        "--sequence_parallel": "true",
    }


def test_the_spelling_that_the_command_has_is_kept() -> None:
    assert "--micro-batch-size 1" in FOLDING.apply_parameters("megatron sft --max-length 4096", DENSE)
    assert "--micro_batch_size=1" in FOLDING.apply_parameters("megatron sft --max_length=4096", DENSE)
    launched = "torchrun --nproc-per-node 8 swift/cli/_megatron/sft.py --model x"
    assert "--micro_batch_size 1" in FOLDING.apply_parameters(launched, DENSE)


def test_other_commands_get_hyphens() -> None:
    for command in ("torchrun pretrain_gpt.py --bf16", "bash train.sh"):
        assert "--micro-batch-size 1" in FOLDING.apply_parameters(command, DENSE)


def test_what_only_looks_like_the_option_is_not_touched() -> None:
    command = "echo --micro-batch-size 9 && megatron sft --model x"
    edited = FOLDING.apply_parameters(command, DENSE)
    assert edited.startswith("echo --micro-batch-size 9 && megatron sft --model x ")
    assert ParsedCommand.of(edited).get("--micro-batch-size") == "1"
    assert with_underscores("megatron sft --my-lr-decay 1", "megatron sft", ["--lr-decay"]).endswith("--my-lr-decay 1")


@pytest.mark.parametrize(
    ("command", "change", "expected"),
    [
        ("megatron sft --model x", {"tp": 2}, "true"),
        ("megatron sft --model x", {"tp": 1}, None),
        ("megatron sft --model x --sequence_parallel false", {"tp": 2}, "false"),
        ("megatron sft --model x --sequence_parallel false", {"tp": 2, "ep": 2}, "true"),
        ("megatron sft --model x --sequence_parallel true", {"tp": 1}, "true"),
        ("torchrun pretrain_gpt.py --bf16", {"tp": 2}, None),
    ],
)
def test_sequence_parallelism_goes_with_tensor_parallelism(command: str, change: Params, expected: str | None) -> None:
    params = {**PLAIN, **change}
    edited = ParsedCommand.of(FOLDING.apply_parameters(command, params))
    assert edited.get("--sequence-parallel") == expected
    # What is planned is what runs; at tp 1 ms-swift switches it off by itself.
    assert FOLDING.planned_layout(command, params).sequence_parallel is (expected == "true" and change["tp"] == 2)


def test_without_folding_a_command_that_says_no_is_planned_so() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    assert not preset.planned_layout("megatron sft --sequence_parallel false", DENSE).sequence_parallel
    assert preset.planned_layout("megatron sft --sequence_parallel true", DENSE).sequence_parallel


@pytest.mark.parametrize("option", ["save_interval", "log_interval", "train_type", "max_epochs"])
def test_options_of_version_3_show_it(option: str) -> None:
    found = swift_version(f"megatron sft --{option} 5")
    assert found.major == 3 and mentions(found.source, f"--{option}")


@pytest.mark.parametrize("option", ["save_steps", "logging_steps", "tuner_type", "num_train_epochs"])
def test_options_of_version_4_show_it(option: str) -> None:
    assert swift_version(f"megatron sft --{option}=5").major == 4


@pytest.mark.parametrize(("installed", "major"), [("3.12.1", 3), ("2.6.0", 3), ("4.5.0.dev0", 4), ("5.0", 4)])
def test_else_the_installed_one_does(monkeypatch: pytest.MonkeyPatch, installed: str, major: int) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"ms-swift": installed}[name])
    found = swift_version("megatron sft --model x")
    assert found.major == major and mentions(found.source, installed)
    assert swift_version("megatron sft --save_interval 1 --save_steps 1") == found


@pytest.mark.parametrize("installed", ["unknown", None])
def test_and_else_it_is_4(monkeypatch: pytest.MonkeyPatch, installed: str | None) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert swift_version("megatron sft --model x").major == 4
    [note] = interleaved().notes("megatron sft --model x")
    assert mentions(note, "vp", "ms-swift 4")


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("megatron sft --log_interval 5 --lr 1", "megatron sft --log_interval 1 --lr 1"),
        ("megatron sft --logging_steps=5", "megatron sft --logging_steps=1"),
        ("megatron sft --save_steps 9", "megatron sft --save_steps 9 --logging_steps 1"),
        ("megatron sft --save_interval 9", "megatron sft --save_interval 9 --log_interval 1"),
        ("torchrun pretrain_gpt.py --lr 1", "torchrun pretrain_gpt.py --lr 1 --log-interval 1"),
        ("python mine.py --lr 1", "python mine.py --lr 1"),
    ],
)
def test_trials_log_every_iteration_where_the_option_is_certain_to_be_known(command: str, launched: str) -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind(command)
    assert preset.trial_command(command) == launched


def test_a_template_gets_no_option_that_it_has_no_place_for() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind("torchrun pretrain_gpt.py {tp}")
    assert preset.trial_command("torchrun pretrain_gpt.py 2") == "torchrun pretrain_gpt.py 2"


def test_interleaving_is_searched_on_request_and_only_with_folding() -> None:
    assert "vp" not in FOLDING.get_search_space()
    assert interleaved().get_search_space()["vp"].grid(1) == [1, 2, 4]
    with pytest.raises(UsageError, match=r"folding=true.*vp_max=2"):
        MegatronPreset(n_gpus=8, gbs=16, vp_max=2)
    with pytest.raises(UsageError, match=r"vp_max\b.*\b1\b.*\b0\b"):
        MegatronPreset(n_gpus=8, gbs=16, vp_max=0)


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("megatron sft --save_steps 5", "virtual_pipeline_model_parallel_size", "2"),
        ("megatron sft --save_interval 5", "num_layers_per_virtual_pipeline_stage", "6"),
        ("torchrun pretrain_gpt.py --bf16", "num-virtual-stages-per-pipeline-rank", "2"),
    ],
)
def test_chunks_are_written_as_each_framework_takes_them(command: str, option: str, value: str) -> None:
    preset = interleaved(num_layers=48)
    preset.bind(command)
    edited = preset.apply_parameters(command, {**PLAIN, "pp": 4, "vp": 2})
    assert f" --{option} {value}" in edited
    assert [name for name in INTERLEAVING if ParsedCommand.of(edited).has(name)] == ["--" + option.replace("_", "-")]
    # A trial without interleaving loses the option, however the command spelled it.
    again = ParsedCommand.of(preset.apply_parameters(edited, {**PLAIN, "pp": 4, "vp": 1}))
    assert [name for name in INTERLEAVING if again.has(name)] == []


def test_a_placeholder_takes_the_chunks() -> None:
    edited = interleaved().apply_parameters("VP={vp} megatron sft --save_steps 5", {**PLAIN, "pp": 4, "vp": 2})
    assert edited.startswith("VP=2 megatron sft ")
    assert "virtual" not in edited


def test_version_3_needs_the_number_of_layers_before_the_first_trial() -> None:
    with pytest.raises(UsageError, match="model=NAME or num_layers=48"):
        interleaved().bind("megatron sft --save_interval 5")
    interleaved().bind("megatron sft --save_steps 5")


def test_a_command_with_no_place_for_the_chunks_keeps_them() -> None:
    names = "tp pp cp ep etp mbs gbs recompute_granularity recompute_method recompute_num_layers"
    full = " ".join(f"{{{name}}}" for name in [*names.split(), "vit_gradient_checkpointing"])
    template = f"{{ ./a.sh {full}; ./b.sh; }} | tee log"
    MegatronPreset(n_gpus=8, gbs=16, folding=True).bind(template)
    preset = interleaved()
    preset.bind(template)
    assert preset.get_search_space()["vp"].grid(1) == [1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pp": 1, "vp": 2}, ("vp 2", "pp 1")),
        ({"pp": 4, "vp": 2}, None),
        ({"pp": 4, "vp": 4}, None),
        ({"pp": 2, "vp": 2, "mbs": 4}, ("m", "pp", "vp", 1, 2)),
        ({"pp": 8, "vp": 4}, ("num_layers", "pp*vp", 48, 32)),
    ],
)
def test_an_interleaved_pipeline_keeps_megatrons_rules(change: Params, named: Any) -> None:
    reason = interleaved(num_layers=48).explain({**PLAIN, **change})
    assert reason is None if named is None else mentions(reason, *named)


def test_points_and_labels_have_the_chunks() -> None:
    preset = interleaved(num_layers=48)
    chosen = {(int(point["pp"]), int(point["vp"])) for point in preset.points()}
    assert {vp for pp, vp in chosen if pp == 1} == {1}
    assert {vp for pp, vp in chosen if pp == 4} == {1, 2, 4}
    point: Params = {**PLAIN, "pp": 4, "vp": 2}
    assert preset.label(point) == "PP4 VP2 mbs1 full"
    assert preset.planned_layout("megatron sft", point).vp == 2


class AsksPoints(TuningStrategy):
    """Ask for given points, in order."""

    ends_by_itself = True

    def __init__(self, points: list[Params]) -> None:
        self.points = points

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        for point in self.points:
            eval_fn.run(point)


FAKE_SWIFT = """\
import json, os, sys, time

args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert all(name.startswith("--") and "-" not in name[2:] for name in args), args
if args.get("--recompute_granularity") == "selective" and "--recompute_method" in args:
    raise ValueError("recompute_method is not supported for selective")
if args.get("--micro_batch_size") == "4":
    sys.exit(0)  # prints and writes nothing: the lines of the trial before must not count
step_s = 8.0 / int(args.get("--tensor_model_parallel_size", 1))
os.makedirs(args["--output_dir"], exist_ok=True)
with open(os.path.join(args["--output_dir"], "logging.jsonl"), "a") as file:
    for iteration in (5, 10, 15):
        fields = {"loss": 1.0 / step_s, "iteration": f"{iteration}/15", "train_speed(s/it)": step_s}
        file.write(json.dumps(fields) + "\\n")
"""


def test_trials_of_ms_swift_are_measured_by_the_file_that_all_of_them_append_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "megatron"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{FAKE_SWIFT}")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    command = f"megatron sft --max_length 4096 --output_dir {tmp_path / 'out'} --add_version false"
    asked: list[Params] = [{"tp": 2}, {"tp": 4, "recompute_granularity": "selective"}, {"tp": 8, "mbs": 4}, {"tp": 1}]
    witness = Witness()
    args = {"n_gpus": 8, "gbs": 16, "folding": True}
    tuner = PresetTuner(
        command,
        "megatron",
        AsksPoints([{**PLAIN, **change} for change in asked]),
        output_dir=tmp_path / "study",
        tune_args=args,
        listener=witness,
        confirm=False,
    )
    best, _ = tuner.optimize()
    assert best == pytest.approx(16 * 4096 / 2.0)
    assert witness.end is not None
    assert [trial.unit for trial in witness.trials if trial.ok] == ["tokens/s"] * 4
    values = [trial.value for trial in witness.trials]
    assert values == [
        pytest.approx(8192.0),
        pytest.approx(16384.0),
        pytest.approx(32768.0),
        None,
        pytest.approx(8192.0),
    ]
    assert mentions(witness.trials[3].cause, "empty")
