from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.presets.points import PLAIN
from zenith_tune.errors import ModelConfigError, UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import CategoricalParameter, Direction, Params
from zenith_tune.testing import PresetContract


class TestMegatronPreset(PresetContract):
    def make(self) -> MegatronPreset:
        return MegatronPreset(n_gpus=8, gbs=16, num_layers=48, num_query_groups=4)


class TestMegatronPresetWithFolding(PresetContract):
    def make(self) -> MegatronPreset:
        return MegatronPreset(n_gpus=8, gbs=16, num_layers=48, num_query_groups=4, folding=True)

    def command(self) -> str:
        return "torchrun --nproc-per-node 8 pretrain_gpt.py --recompute-method block --vit-gradient-checkpointing true"


def test_the_search_space_is_categorical_and_in_the_documented_order() -> None:
    space = MegatronPreset(n_gpus=8, gbs=16).get_search_space()
    assert {type(parameter) for parameter in space.values()} == {CategoricalParameter}
    assert {name: parameter.grid(1) for name, parameter in space.items()} == {
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 4, 8],
        "cp": [1, 2, 4, 8],
        "ep": [1, 2, 4, 8],
        "etp": [1, 2, 4, 8],
        "mbs": [1, 2, 4, 8],
        "recompute_granularity": ["full", "selective"],
        "recompute_method": ["uniform", "block"],
        "recompute_num_layers": [1, 2, 3, 4],
        "vit_gradient_checkpointing": ["true", "false"],
    }
    assert list(space) == list(PLAIN)


@pytest.mark.parametrize(
    ("n_gpus", "mbs_max", "gbs", "sizes", "micro_batches"),
    [
        (1, 8, 16, [1], [1, 2, 4, 8]),
        (6, 8, 12, [1, 2, 4], [1, 2, 4]),
        (16, 6, 48, [1, 2, 4, 8, 16], [1, 2, 4]),
        (8, 64, 24, [1, 2, 4, 8], [1, 2, 4, 8]),
        (8, 8, 7, [1, 2, 4, 8], [1]),
        (8, 1, 16, [1, 2, 4, 8], [1]),
    ],
)
def test_sizes_reach_up_to_the_gpus_and_micro_batches_divide_the_batch(
    n_gpus: int, mbs_max: int, gbs: int, sizes: list[int], micro_batches: list[int]
) -> None:
    space = MegatronPreset(n_gpus=n_gpus, mbs_max=mbs_max, gbs=gbs).get_search_space()
    assert space["tp"].grid(1) == space["etp"].grid(1) == sizes
    assert space["mbs"].grid(1) == micro_batches


@pytest.mark.parametrize("name", ["n_gpus", "gbs", "mbs_max", "num_layers", "num_query_groups"])
@pytest.mark.parametrize("value", [0, -4])
def test_a_count_below_one_is_refused_in_one_line(name: str, value: int) -> None:
    with pytest.raises(UsageError) as caught:
        MegatronPreset(**{"n_gpus": 8, "gbs": 16, name: value})  # type: ignore[arg-type]
    assert mentions(caught.value.problem, name, 1, value) and f"{name}=1" in caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_model_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=f"{tmp_path}/none"):
        MegatronPreset(n_gpus=8, gbs=16, model=str(tmp_path / "none"), num_layers=4, num_query_groups=4)


def test_gpus_that_are_no_power_of_two_have_a_space_but_no_recommended_strategy() -> None:
    preset = MegatronPreset(n_gpus=6, gbs=12)
    assert any(not preset.prune({**PLAIN, "tp": tp}) for tp in (1, 2))
    with pytest.raises(UsageError, match=r"n_gpus.*\b6\b.*--strategy optuna or grid"):
        preset.get_recommended_strategy()


@pytest.mark.parametrize(
    "command",
    [
        "megatron sft --model Qwen/Qwen3-8B",
        "NPROC_PER_NODE=8 megatron pt --model x",
        "cd run && CUDA_VISIBLE_DEVICES=0,1 /opt/env/bin/megatron  rlhf --x 1",
        "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16",
        "torchrun /opt/Megatron-LM/pretrain_vlm.py",
        "bash -c 'python pretrain_t5.py'",
        "python -m torch.distributed.run swift/cli/_megatron/sft.py --model x",
        "python examples/fake_megatron_train.py --noise",
    ],
)
def test_a_megatron_command_is_recognised(command: str) -> None:
    assert MegatronPreset.recognises(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "bash train.sh",
        "python train.py --data megatron sftp",
        "swift sft --model Qwen/Qwen3-8B",
        "deepspeed train.py --name my_pretrain_gpt",
        "accelerate launch train.py",
        "python pretrain.py",
        "python not_pretrain_gpt.py",
    ],
)
def test_another_command_is_not(command: str) -> None:
    assert not MegatronPreset.recognises(command)


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({}, "mbs1 full"),
        ({"tp": 4, "ep": 2, "mbs": 2, "recompute_granularity": "selective"}, "TP4 EP2 mbs2 selective"),
        ({"pp": 2, "cp": 2, "etp": 2}, "PP2 CP2 ETP2 mbs1 full"),
        ({"recompute_method": "block", "recompute_num_layers": 3}, "mbs1 full block layers3"),
        ({"tp": 8, "vit_gradient_checkpointing": "false"}, "TP8 mbs1 full vit off"),
    ],
)
def test_a_label_says_what_is_not_one_or_usual(change: Params, label: str) -> None:
    assert MegatronPreset(n_gpus=8, gbs=16).label({**PLAIN, **change}) == label


def test_any_two_points_have_different_labels() -> None:
    preset = MegatronPreset(n_gpus=4, gbs=16)
    space = preset.get_search_space()
    points = [{**PLAIN, name: value} for name, parameter in space.items() for value in parameter.grid(1)]
    assert len({preset.label(point) for point in points}) == len({tuple(point.values()) for point in points})


def test_a_points_layout_counts_experts_beside_the_dense_ranks() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16, folding=True)
    layout = preset.layout({**PLAIN, "tp": 4, "ep": 8, "mbs": 2})
    recompute = {"recompute": "full/uniform", "recompute_layers": 1}
    assert layout == Layout(num_gpus=8, tp=4, ep=8, micro_batch=2, global_batch=16, **recompute)  # type: ignore[arg-type]
    assert (layout.dp, layout.edp, layout.num_micro_batches) == (2, 1, 4)


def test_a_mixture_of_experts_without_folding_is_noted_in_one_line(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    [note] = MegatronPreset(n_gpus=8, gbs=16, model=str(tmp_path)).notes("bash train.sh")
    assert mentions(note, 128, "folding=true")
    assert "\n" not in note
    assert MegatronPreset(n_gpus=8, gbs=16, model=str(tmp_path), folding=True).notes("megatron sft") == []
    assert MegatronPreset(n_gpus=8, gbs=16).notes("bash train.sh") == []


def test_a_dense_model_gets_no_expert_parallelism_and_one_note_of_it(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 48, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    preset = MegatronPreset(n_gpus=8, gbs=16, model=str(tmp_path))
    assert len(preset.notes("bash train.sh")) == 1
    assert {(point["ep"], point["etp"]) for point in preset.points()} == {(1, 1)}


@pytest.mark.parametrize(
    ("command", "is_dense"),
    [
        ("torchrun pretrain_gpt.py --num-layers 16 --hidden-size 2048", True),
        ("torchrun pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-experts 8", False),
        ("torchrun pretrain_gpt.py --use-checkpoint-args", False),
        ("bash train.sh", False),
    ],
)
def test_a_command_that_describes_a_dense_model_gets_no_expert_parallelism(command: str, is_dense: bool) -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind(command)
    assert any("has no experts" in note for note in preset.notes(command)) is is_dense
    assert preset.prune({**PLAIN, "tp": 2, "ep": 2}) is is_dense


def test_the_evaluator_reads_megatrons_throughput() -> None:
    evaluator = MegatronPreset(n_gpus=8, gbs=16).evaluator()
    assert evaluator.direction is Direction.MAXIMIZE
    assert "gbs 16" in evaluator.describe()


def test_the_preset_is_registered() -> None:
    assert PresetRegistry.get("megatron") is MegatronPreset


def test_megatrons_own_scripts_get_the_sizes_of_folding() -> None:
    notes = MegatronPreset(n_gpus=8, gbs=16).warnings("torchrun --nproc-per-node 8 pretrain_gpt.py")
    assert len(notes) == 2 and all("folding=true" in note for note in notes)
    assert MegatronPreset(n_gpus=8, gbs=16, folding=True).notes("torchrun pretrain_gpt.py") == []


def test_the_own_point_is_read_from_options_and_defaults() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    own = preset.own_point(
        "python fake_megatron_train.py --tensor-model-parallel-size 2 --recompute_granularity selective"
    )
    assert own is not None
    assert (own["tp"], own["ep"], own["mbs"], own["recompute_granularity"]) == (2, 1, 1, "selective")


@pytest.mark.parametrize(
    "command",
    [
        "bash train.sh",
        "python fake_megatron_train.py --global-batch-size 32",
        "python fake_megatron_train.py --micro-batch-size $MBS",
        "python fake_megatron_train.py --tensor-model-parallel-size {tp}",
        "python fake_megatron_train.py --recompute-granularity none",
        "python pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16",
    ],
)
def test_a_command_that_is_no_point_or_does_not_tell_has_no_own_point(command: str) -> None:
    assert MegatronPreset(n_gpus=8, gbs=16).own_point(command) is None


def test_sequence_parallelism_that_a_trial_adds_makes_it_another_run() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16, folding=True)
    command = "megatron sft --tensor_model_parallel_size 2 --vit_gradient_checkpointing true"
    assert preset.own_point(command) is None
    assert preset.own_point(f"{command} --sequence_parallel true") is not None


SELECTIVE: Params = {**PLAIN, "recompute_granularity": "selective"}


@pytest.fixture
def megatron_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an environment on PATH that has ms-swift's own program, torchrun, and Megatron Core 0.14.1."""
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "megatron" / "core"
    package.mkdir(parents=True)
    (package / "package_info.py").write_text("MAJOR = 0\nMINOR = 14\nPATCH = 1\n")
    for name in ("megatron", "torchrun"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")


@pytest.mark.parametrize("command", ["megatron sft --lr 1", "torchrun --nproc-per-node 8 pretrain_gpt.py"])
def test_selective_recomputation_is_without_a_method_where_megatron_is_installed(
    command: str, megatron_on_path: None
) -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind(command)
    line = ParsedCommand.of(preset.apply_parameters(command, SELECTIVE))
    assert line.get("--recompute-granularity") == "selective"
    assert not line.has("--recompute-method") and not line.has("--recompute-num-layers")
    full = ParsedCommand.of(preset.apply_parameters(command, PLAIN))
    assert (full.get("--recompute-method"), full.get("--recompute-num-layers")) == ("uniform", "1")
    assert any(mentions(note, "0.14.1", "selective") for note in preset.notes(command))
    # What would be the same run is tried once, and what the heuristic asks for is kept.
    assert preset.prune({**SELECTIVE, "recompute_method": "block"}) and not preset.prune(SELECTIVE)


@pytest.mark.parametrize("command", ["megatron sft --lr 1", "bash train.sh"])
def test_elsewhere_it_is_as_documented(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind(command)
    line = ParsedCommand.of(preset.apply_parameters(command, SELECTIVE))
    assert (line.get("--recompute-method"), line.get("--recompute-num-layers")) == ("uniform", "1")
    assert not preset.prune({**SELECTIVE, "recompute_method": "block"})
    assert len([note for note in preset.warnings(command) if mentions(note, "selective", "folding=true")]) == (
        command != "bash train.sh"
    )


VISION = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 4, "vision_config": {"depth": 27}}


@pytest.mark.parametrize("kind", ["option", "script", "catalog"])
def test_the_shape_of_the_commands_own_model_rules_layouts_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(VISION), encoding="utf-8")
    Path("train.sh").write_text('MODEL=.\nmegatron sft --model $MODEL "$@"\n')
    commands = {"option": "megatron sft --model .", "script": "bash train.sh", "catalog": "megatron sft --model "}
    command = commands[kind] + ("Qwen/Qwen2.5-7B-Instruct" if kind == "catalog" else "")
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind(command)
    assert mentions(preset.explain({**PLAIN, "tp": 8}), "num_query_groups", 4)
    assert preset.explain({**PLAIN, "tp": 4}) is None
    assert preset.prune({**PLAIN, "recompute_method": "block"}) == (kind != "catalog")
    assert preset.prune(SELECTIVE) == (kind != "catalog")
    said = MegatronPreset(n_gpus=8, gbs=16, num_query_groups=8)
    said.bind(command)
    assert said.explain({**PLAIN, "tp": 8}) is None, "what the user says wins"


def test_a_model_of_the_command_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    command = f"megatron sft --model {tmp_path}/none"
    preset.bind(command)
    [note] = [note for note in preset.warnings(command) if "none" in note]
    assert "\n" not in note and "num_layers=" in note
    assert not preset.prune({**PLAIN, "tp": 8})
