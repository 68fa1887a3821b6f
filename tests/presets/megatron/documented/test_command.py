from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.presets.megatron.documented.command import find_swift_run, runs_megatron
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.strategies.megatron_heuristic import MegatronHeuristicStrategy
from zenith_tune.study.parameters import Params

FAKE_TRAINER = Path(__file__).parents[4] / "examples" / "fake_megatron_train.py"
POINT: Params = {
    "tp": 4,
    "pp": 1,
    "cp": 1,
    "ep": 2,
    "etp": 1,
    "mbs": 2,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "vit_gradient_checkpointing": "true",
}
SELECTIVE: Params = {**POINT, "recompute_granularity": "selective"}
ALL_OPTIONS = {
    "--tensor-model-parallel-size": "4",
    "--pipeline-model-parallel-size": "1",
    "--context-parallel-size": "1",
    "--expert-model-parallel-size": "2",
    "--expert-tensor-parallel-size": "1",
    "--micro-batch-size": "2",
    "--global-batch-size": "16",
    "--recompute-granularity": "full",
    "--recompute-method": "uniform",
    "--recompute-num-layers": "1",
    "--vit-gradient-checkpointing": "true",
}
PLAIN = MegatronPreset(n_gpus=8, gbs=16)
FOLDING = MegatronPreset(n_gpus=8, gbs=16, folding=True)


def options_of(command: str) -> dict[str, str]:
    """Return the options of a command in which each is `--name value`, and a bare flag's value is empty."""
    words = [word for word in shlex.split(command) if word.startswith("--") or not word.startswith("-")]
    options = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            options[word] = "" if following.startswith("--") else following
    return options


def test_exactly_the_documented_options_are_added() -> None:
    edited = PLAIN.apply_parameters("python train.py --lr 0.1", POINT)
    assert edited.startswith("python train.py --lr 0.1 ")
    assert options_of(edited) == {"--lr": "0.1", **ALL_OPTIONS}
    assert list(options_of(edited))[1:] == list(ALL_OPTIONS)


def test_what_is_there_is_replaced_in_the_spelling_that_the_command_uses() -> None:
    command = "megatron sft --tensor_model_parallel_size=8 --micro_batch_size=1 --global_batch_size=128 --lr=1"
    edited = PLAIN.apply_parameters(command, POINT)
    words = edited.split()
    assert words[:6] == [
        "megatron",
        "sft",
        "--tensor_model_parallel_size=4",
        "--micro_batch_size=2",
        "--global_batch_size=16",
        "--lr=1",
    ]
    assert sorted(words[6:]) == [
        "--context_parallel_size=1",
        "--expert_model_parallel_size=2",
        "--expert_tensor_parallel_size=1",
        "--pipeline_model_parallel_size=1",
        "--recompute_granularity=full",
        "--recompute_method=uniform",
        "--recompute_num_layers=1",
        "--vit_gradient_checkpointing=true",
    ]


def test_a_command_with_placeholders_is_filled_and_gets_no_option() -> None:
    edited = PLAIN.apply_parameters("OUT=run-{tp}-{mbs} python train.py --tp {tp} --world {n_gpus}", POINT)
    assert edited == "OUT=run-4-2 python train.py --tp 4 --world 8"


def test_of_a_command_with_placeholders_nothing_else_is_searched() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    preset.bind("python fake_megatron_train.py --micro-batch-size {mbs} --tensor-model-parallel-size 2")
    space = preset.get_search_space()
    assert {name for name, parameter in space.items() if len(parameter.grid(1)) > 1} == {"mbs"}
    assert space["tp"].grid(1) == [2]
    assert [point["mbs"] for point in preset.points()] == [1, 2, 4]
    assert not isinstance(preset.get_recommended_strategy(), MegatronHeuristicStrategy)


def test_the_global_batch_is_always_set_unless_it_has_a_placeholder() -> None:
    assert options_of(PLAIN.apply_parameters("python train.py", POINT))["--global-batch-size"] == "16"
    assert "--global-batch-size" not in PLAIN.apply_parameters("python train.py --batch {gbs}", POINT)


TEMPLATE = (
    "{ A={tp} B={pp} C={cp} D={ep} E={etp} F={mbs} G={gbs} H={recompute_granularity} I={recompute_method} "
    "J={recompute_num_layers} K={vit_gradient_checkpointing} ./run.sh; }"
)


def test_a_command_with_a_placeholder_for_everything_is_only_filled() -> None:
    with pytest.raises(CommandError):
        PLAIN.apply_parameters("{ ./a.sh; ./b.sh; } | tee log", POINT)
    for preset in (PLAIN, FOLDING):
        assert preset.apply_parameters(TEMPLATE, POINT) == (
            "{ A=4 B=1 C=1 D=2 E=1 F=2 G=16 H=full I=uniform J=1 K=true ./run.sh; }"
        )


def test_without_folding_selective_keeps_its_method_as_documented() -> None:
    edited = PLAIN.apply_parameters("python train.py", SELECTIVE)
    assert options_of(edited) == {**ALL_OPTIONS, "--recompute-granularity": "selective"}


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python train.py --recompute-method block --recompute-num-layers 4",
    ],
)
def test_with_folding_selective_has_neither_method_nor_layers(command: str) -> None:
    options = options_of(FOLDING.apply_parameters(command, {**SELECTIVE, "ep": 1}))
    expected = {**ALL_OPTIONS, "--recompute-granularity": "selective", "--expert-model-parallel-size": "1"}
    del expected["--recompute-method"], expected["--recompute-num-layers"]
    assert options == expected


def test_with_folding_full_keeps_method_and_layers() -> None:
    options = options_of(FOLDING.apply_parameters("python train.py --recompute-method block", {**POINT, "ep": 1}))
    assert options == {**ALL_OPTIONS, "--expert-model-parallel-size": "1"}


def test_with_folding_the_flag_that_overrides_the_granularity_goes() -> None:
    edited = FOLDING.apply_parameters("torchrun pretrain_gpt.py --recompute-activations --bf16", {**POINT, "ep": 1})
    assert "--recompute-activations" not in edited
    assert "pretrain_gpt.py --bf16 " in edited
    assert "--recompute-activations" in PLAIN.apply_parameters(
        "torchrun pretrain_gpt.py --recompute-activations", POINT
    )


def test_with_folding_megatrons_own_script_gets_no_vit_option() -> None:
    for command in ("torchrun pretrain_gpt.py", "torchrun pretrain_gpt.py --vit-gradient-checkpointing true"):
        assert "vit" not in FOLDING.apply_parameters(command, POINT)
        assert "--vit-gradient-checkpointing true" in PLAIN.apply_parameters(command, POINT)
    assert "vit_gradient_checkpointing true" in FOLDING.apply_parameters("megatron sft --model x", POINT)


def test_experts_with_tensor_parallelism_need_sequence_parallelism() -> None:
    flag = FOLDING.apply_parameters("torchrun pretrain_gpt.py", POINT)
    assert options_of(flag)["--sequence-parallel"] == ""
    assert FOLDING.apply_parameters(flag, POINT).count("--sequence-parallel") == 1
    valued = FOLDING.apply_parameters("megatron sft --model x --sequence_parallel false", POINT)
    assert "--sequence_parallel true" in valued
    assert valued.count("sequence_parallel") == 1


@pytest.mark.parametrize("change", [{"tp": 1}, {"ep": 1}])
def test_other_points_of_megatrons_own_scripts_are_left_without_sequence_parallelism(change: Params) -> None:
    assert "sequence" not in FOLDING.apply_parameters("torchrun pretrain_gpt.py", {**POINT, **change})
    assert "sequence" not in PLAIN.apply_parameters("torchrun pretrain_gpt.py", POINT)


def test_a_model_known_to_have_experts_needs_sequence_parallelism_even_at_ep_1(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    preset = MegatronPreset(n_gpus=8, gbs=16, model=str(tmp_path), folding=True)
    assert "--sequence-parallel" in preset.apply_parameters("torchrun pretrain_gpt.py", {**POINT, "ep": 1})


@pytest.mark.parametrize("preset", [PLAIN, FOLDING])
@pytest.mark.parametrize("point", [POINT, SELECTIVE])
def test_the_bundled_trainer_takes_what_is_set(preset: MegatronPreset, point: Params) -> None:
    command = shlex.join([sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0", "--train-iters", "5"])
    done = subprocess.run(shlex.split(preset.apply_parameters(command, point)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert preset.evaluator().evaluate(done.stdout, {}) > 0


def test_megatron_swift_is_recognised_by_sft() -> None:
    assert runs_megatron("NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B")
    assert not runs_megatron(
        "swift sft --model Qwen/Qwen3-8B"
    )  # trains with transformers, and takes none of the options


def test_a_run_of_megatron_swift_is_found_with_its_variables() -> None:
    run = find_swift_run("export NPROC_PER_NODE=8; megatron sft --micro_batch_size 2")
    assert run is not None
    assert run.variables["NPROC_PER_NODE"] == "8"
    assert run.arguments == ("sft", "--micro_batch_size", "2")
