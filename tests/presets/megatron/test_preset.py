from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.describe.smi_samples import listed, matrix, uniform
from tests.mentions import mentions
from tests.presets.megatron.test_commands import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL, ONE_H200
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron.preset import MegatronLmPreset, installed
from zenith_tune.registry import construct
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Direction, Params
from zenith_tune.testing import PresetContract
from zenith_tune.tuner import PresetTuner

PLAIN: Params = {"tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "none"}


def bound(command: str, **keywords: int | str) -> MegatronLmPreset:
    preset = MegatronLmPreset(**keywords)  # type: ignore[arg-type]
    preset.bind(command)
    return preset


class TestMegatronLmPreset(PresetContract):
    def make(self) -> MegatronLmPreset:
        return bound(self.command())

    def command(self) -> str:
        return LLAMA3_8B


class TestMegatronLmPresetWithExperts(PresetContract):
    def make(self) -> MegatronLmPreset:
        return bound(self.command(), search="default+zero+sequence_parallel")

    def command(self) -> str:
        return MIXTRAL


class TestMegatronLmPresetInAScript(PresetContract):
    @pytest.fixture(autouse=True)
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "train.sh").write_text(f'{ONE_H200} "$@"\n')
        monkeypatch.chdir(tmp_path)

    def make(self) -> MegatronLmPreset:
        return bound(self.command())

    def command(self) -> str:
        return "bash train.sh"


class TestMegatronLmPresetWithoutACommand(PresetContract):
    def make(self) -> MegatronLmPreset:
        return MegatronLmPreset(n_gpus=8, gbs=128, model="llama3-8b")

    def command(self) -> str:
        return LLAMA3_8B


@pytest.mark.parametrize(
    "command",
    [
        LLAMA3_8B,
        MIXTRAL,
        "torchrun /opt/Megatron-LM/pretrain_gpt.py",
        "python -m torch.distributed.run --nproc-per-node 8 pretrain_llama.py",
        "bash -c 'python pretrain_gpt.py'",
    ],
)
def test_a_pretrain_script_is_recognised_before_the_older_preset_gets_it(command: str) -> None:
    assert MegatronLmPreset.recognises(command)
    names = [name for name, _ in PresetRegistry.each_loadable()]
    assert names.index("megatron-lm") < names.index("megatron")
    assert PresetTuner(LLAMA3_8B).config.preset_name == "megatron-lm"


@pytest.mark.parametrize(
    "command",
    [
        "megatron sft --model Qwen/Qwen3-8B",
        "NPROC_PER_NODE=8 megatron pt --model x",
        "python examples/fake_megatron_train.py --noise",
        "torchrun pretrain_t5.py",
        "torchrun /opt/Megatron-LM/pretrain_vlm.py",
        "torchrun pretrain_hybrid.py",
        "bash nowhere.sh",
        "python train.py",
        "",
    ],
)
def test_commands_of_other_presets_are_left_to_them(command: str) -> None:
    assert not MegatronLmPreset.recognises(command)


def test_ms_swift_and_the_fake_trainer_still_go_to_the_older_preset() -> None:
    for command in ("megatron sft --model x", "python examples/fake_megatron_train.py", "torchrun pretrain_vlm.py"):
        assert PresetTuner(command, tune_args={"n_gpus": "8", "gbs": "16"}).config.preset_name == "megatron"


def test_a_script_that_runs_one_is_recognised(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(LLAMA3_8B)
    assert MegatronLmPreset.recognises(f"bash {script}")
    assert MegatronLmPreset.recognises(f"srun -N 1 bash {script}")
    script.write_text("megatron sft --model x")
    assert not MegatronLmPreset.recognises(f"bash {script}")


def test_the_subject_is_all_that_a_plan_needs() -> None:
    subject = bound(LLAMA3_8B, cluster="h100x8").subject(LLAMA3_8B)
    assert (subject.model, subject.cluster) == (load_model("llama3-8b"), load_cluster("h100x8"))
    assert (subject.job.seq_len, subject.job.framework.name, subject.job.precision) == (8192, "megatron", "bf16")
    assert MegatronLmPreset(cluster="h100x8").subject(LLAMA3_8B) == subject


def test_a_vocabulary_that_only_the_tokenizer_has_is_looked_up_by_its_name() -> None:
    model = bound(DEEPSEEK_V3, cluster="h100x256").subject(DEEPSEEK_V3).model
    assert model == load_model("deepseek-v3")


def test_one_that_nobody_knows_is_asked_for_in_one_line(tmp_path: Path) -> None:
    command = LLAMA3_8B.replace("--vocab-size 128256", f"--tokenizer-model {tmp_path}/tokenizer.model")
    with pytest.raises(UsageError) as caught:
        bound(command, cluster="h100x8").subject(command)
    assert mentions(caught.value.problem, "megatron-lm", "tokenizer")
    assert mentions(caught.value.hint, "--args vocab=128256")
    assert bound(command, cluster="h100x8", vocab=32_000).subject(command).model.name == "mistral-7b"


def install_machine(folder: Path, gpu: str, count: int) -> None:
    (folder / "gpus").write_text(listed(gpu, count))
    (folder / "links").write_text(matrix(uniform(count, "NV18")))
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncd '{folder}'; if [ \"$1\" = -L ]; then cat gpus; else cat links; fi\n")
    smi.chmod(0o755)


def test_the_cluster_is_this_machine_with_the_gpus_that_the_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_machine(tmp_path, "NVIDIA H200", 8)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    cluster = bound(ONE_H200).subject(ONE_H200).cluster
    assert (cluster.name, cluster.num_gpus, cluster.gpus_per_node) == ("h200x1", 1, 8)
    several = MIXTRAL.replace("$RANK", "0").replace("${TOKENIZER}", "x")
    assert bound(several).subject(several).cluster.num_nodes == 8


def test_a_cluster_that_is_unknown_or_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        bound(LLAMA3_8B).subject(LLAMA3_8B)
    assert "nvidia-smi" in caught.value.problem and "--cluster h100x8" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        bound(LLAMA3_8B, cluster="h100x4").subject(LLAMA3_8B)
    assert "8 GPUs" in caught.value.problem and "h100x4" in caught.value.problem
    assert "--cluster h100x8" in caught.value.hint


def test_notes_say_what_was_read_and_what_may_spoil_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    small = [
        ("llama-like 1.5B", "16 layers", "hidden 2048", 4096, "batch 16", "1 GPU", "bf16", "no Transformer Engine"),
        ("PYTHONPATH", "0.20"),
        ("mbs, recompute",),
        ("optional settings", "loss_fusion"),
    ]
    mixture = [
        ("mixtral-8x7b", "32 layers", "hidden 4096", "8 experts", 4096, "batch 256", "64 GPUs", "bf16"),
        ("PYTHONPATH", "0.20"),
        ("tp, pp, vp, ep, etp, mbs, recompute",),
        ("--log-interval 1",),
        ("--moe-router-force-load-balancing", "routing=as-is"),
        ("optional settings", "overlap", "permute_fusion", "--allow"),
    ]
    warned = [("--rampup-batch-size",), ("CUDA_DEVICE_MAX_CONNECTIONS=1", "tp", "cp")]
    ramped = bound(f"{MIXTRAL} --rampup-batch-size 32 32 1000")
    for notes, named in (
        (bound(ONE_H200).notes(ONE_H200), small),
        (ramped.notes(MIXTRAL), mixture),
        (ramped.warnings(MIXTRAL), warned),
    ):
        assert [mentions(note, *parts) for note, parts in zip(notes, named, strict=True)] == [True] * len(named), notes


def test_notes_name_the_script_and_what_it_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'ARGS=(--seed 1)\nwhile read -r line; do ARGS+=($line); done < more\n{ONE_H200} ${{ARGS[@]}} "$@"\n'
    Path("train.sh").write_text(text)
    preset = bound("bash train.sh")
    assert mentions(preset.notes("bash train.sh")[0], "train.sh", "llama-like 1.5B")
    assert any(mentions(note, "train.sh", "ARGS") for note in preset.warnings("bash train.sh"))


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({}, "mbs1"),
        ({"tp": 4, "pp": 2, "vp": 4, "mbs": 2, "recompute": "full/block5"}, "TP4 PP2 VP4 mbs2 full/block5"),
        ({"cp": 2, "ep": 8, "etp": 2, "recompute": "selective"}, "CP2 EP8 ETP2 mbs1 selective"),
        ({"zero": 1, "sequence_parallel": False}, "Z1 mbs1"),
        ({"tp": 2, "sequence_parallel": False}, "TP2 mbs1 no SP"),
        ({"overlap": "none", "tp_overlap": False, "ep_overlap": False}, "mbs1"),
        (
            {"overlap": "params", "tp_overlap": True, "ep_overlap": True, "recompute": "selective/moe_act"},
            "mbs1 selective/moe_act overlap params TP overlap EP overlap",
        ),
    ],
)
def test_a_label_says_what_is_not_one_or_none(change: Params, label: str) -> None:
    assert MegatronLmPreset(n_gpus=8, gbs=16).label({**PLAIN, **change}) == label


def test_different_points_have_different_labels() -> None:
    preset = bound(MIXTRAL)
    points = list(preset.points())
    assert len({preset.label(point) for point in points}) == len(points)


def test_the_guided_strategy_and_megatrons_evaluator_are_recommended() -> None:
    preset = bound(LLAMA3_8B)
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)
    evaluator = preset.evaluator()
    assert isinstance(evaluator, MegatronEvaluator)
    assert (evaluator.gbs, evaluator.direction) == (128, Direction.MAXIMIZE)


def test_before_a_command_is_known_the_keywords_make_the_space() -> None:
    preset = MegatronLmPreset(n_gpus=6, gbs=12)
    space = preset.get_search_space()
    assert (space["tp"].grid(1), space["mbs"].grid(1)) == ([1, 2, 3, 6], [1, 2, 3, 4, 6, 12])
    assert mentions(preset.explain({**PLAIN, "tp": 3, "pp": 6}), "n_gpus", "tp*pp*cp", 6, 18)
    assert mentions(preset.explain({**PLAIN, "mbs": 4}), "gbs", "dp*mbs", 12, 24)
    for missing, keywords in (("n_gpus", {"gbs": 8}), ("gbs", {"n_gpus": 8})):
        with pytest.raises(UsageError, match=rf"\b{missing} .*\b{missing}=8\b"):
            MegatronLmPreset(**keywords).get_search_space()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["n_gpus", "gbs", "vocab", "mbs_max", "tp_max"])
def test_a_count_below_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"\b{name} .*\b1\b.*\b0\b.*\b{name}=1\b"):
        MegatronLmPreset(**{name: 0})  # type: ignore[arg-type]


def test_an_unknown_axis_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnknownNameError, match=r"search 'dp'"):
        MegatronLmPreset(search="tp+dp")


def test_arguments_come_as_text_from_the_command_line() -> None:
    preset = construct(MegatronLmPreset, {"n_gpus": "8", "gbs": "64", "search": "tp+mbs", "tp_max": "4"}, "preset")
    assert preset.get_search_space()["tp"].grid(1) == [1, 2, 4]
    assert PresetRegistry.get("megatron-lm") is MegatronLmPreset


def test_a_planned_layout_is_that_of_the_point() -> None:
    preset = bound(LLAMA3_8B)
    for point in list(preset.points())[::50]:
        layout = preset.planned_layout(LLAMA3_8B, point)
        assert layout == preset.layout(point)
        assert (layout.zero, layout.flash_attention, layout.sequence_parallel) == (1, True, layout.tp > 1)
        assert replace(layout, micro_batch=1).global_batch == 128


FAKE_PRETRAIN = """
import argparse
parser = argparse.ArgumentParser()
for name in ("--tensor-model-parallel-size", "--micro-batch-size", "--global-batch-size"):
    parser.add_argument(name, type=int)
args, _ = parser.parse_known_args()
ms = 1000.0 * args.tensor_model_parallel_size / args.micro_batch_size
line = " iteration {0}/ 5 | elapsed time per iteration (ms): {1} | global batch size: {2} |"
for step in range(1, 6):
    print(line.format(step, ms, args.global_batch_size))
"""


@pytest.mark.slow
def test_a_study_of_a_command_needs_no_arguments_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pretrain_gpt.py").write_text(FAKE_PRETRAIN)
    command = LLAMA3_8B.replace("torchrun --nproc_per_node 8 --nnodes 1", f"WORLD_SIZE=8 {sys.executable}")
    tuner = PresetTuner(command, strategy="grid", tune_args={"search": "tp+mbs", "mbs_max": "2"})
    value, params = tuner.optimize()
    assert params is not None and (params["tp"], params["mbs"]) == (1, 2)
    assert value == pytest.approx(128 * 8192 / 0.5)  # tokens per second


def test_a_strategy_hears_of_model_and_layouts() -> None:
    job = PresetTuner(LLAMA3_8B, tune_args={"cluster": "h100x8"}).tuned_job()
    assert job.subject is not None and job.subject.model.name == "llama3-8b"
    points = list(job.points())
    assert len(points) > 100 and job.layout(points[0]) is not None


def test_a_missing_package_is_seen_in_the_log() -> None:
    assert installed('zenithtune: {"packages": {"deep_ep": false}}') == {"deep_ep": False}
