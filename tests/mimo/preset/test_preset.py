from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.describe.fake_smi import install_machine
from tests.describe.smi_samples import listed, matrix, uniform
from tests.mentions import mentions
from tests.requirements import need_module
from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.job import MimoJob
from zenith_mimo.preset.example import DEFAULTS, IMAGES
from zenith_mimo.preset.preset import MimoPreset
from zenith_mimo.preset.strategy import MimoRankedStrategy
from zenith_tune import PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry, recognised_preset
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.study.parameters import CategoricalParameter, Params
from zenith_tune.testing import PresetContract, ScriptedTrials

COMMAND = "python examples/mimo_train.py --encoder-dp 2 --llm-tp 2 --micro-batch-size 2"


def bound(command: str = COMMAND, **args: object) -> MimoPreset:
    preset = MimoPreset(**args)  # type: ignore[arg-type]
    preset.bind(command)
    return preset


def point(**changes: object) -> Params:
    own = {"encoder_ranks": 2, "encoder_tp": 1, "encoder_pp": 1, "llm_tp": 2, "llm_pp": 1, "mbs": 2}
    return {**own, "encoder_recompute": False, "llm_recompute": False, **changes}  # type: ignore[dict-item]


class TestMimoPreset(PresetContract):
    def make(self) -> MimoPreset:
        return bound()

    def command(self) -> str:
        return COMMAND


@pytest.mark.parametrize(
    ("command", "is_known"),
    [
        (COMMAND, True),
        ("torchrun --nproc-per-node 8 examples/mimo_train.py --llm-tp 2", True),
        ("python -m torch.distributed.run --nproc-per-node 8 examples/mimo/pretrain_mimo.py --llm-tp 2", True),
        ("python other_mimo_train.py", False),
        ("python train.py examples/mimo_train.py", False),
        ("torchrun --nproc-per-node 8 pretrain_gpt.py", False),
    ],
)
def test_commands_of_both_examples_are_recognised(command: str, is_known: bool) -> None:
    assert MimoPreset.recognises(command) == is_known
    assert PresetRegistry.get("mimo") is MimoPreset


def test_everything_is_read_from_the_command() -> None:
    preset = bound()
    job = preset.space.read.job
    assert (job.num_ranks, job.global_batch, job.items) == (4, 16, (2, 1, 3, 0))
    assert bound(device_flops=2e9).space.read.job.device.flops_per_s == 2e9
    assert preset.own_point(COMMAND) == point()
    assert preset.get_search_space()["encoder_ranks"] == CategoricalParameter([0, 1, 2, 3])
    evaluator = preset.evaluator()
    assert isinstance(evaluator, MegatronEvaluator) and (evaluator.gbs, evaluator.seq) == (16, 32)


@pytest.mark.parametrize(
    ("command", "num_ranks"),
    [
        ("torchrun --nproc-per-node 6 mimo_train.py", 6),
        ("python mimo_train.py --encoder-tp 2 --llm-pp 3", 5),
        ("python mimo_train.py --encoder-dp 4 --llm-dp 4 --llm-offset 0", 4),
    ],
)
def test_the_ranks_are_those_that_the_command_starts(command: str, num_ranks: int) -> None:
    assert bound(command).space.read.job.num_ranks == num_ranks
    assert bound(command, n_gpus=8).space.read.job.num_ranks == 8


LARGE = (
    "torchrun --nproc-per-node 8 mimo_train.py --bf16 --encoder-layers 4 --encoder-hidden 1024 --encoder-heads 16"
    " --patches 256 --llm-layers 4 --llm-hidden 4096 --llm-heads 32 --seq-length 4096 --vocab-size 32000"
)


@pytest.mark.parametrize("backend", ["", " --backend megatron"])
def test_a_cluster_decides_by_its_gpus_links_and_memory(backend: str) -> None:
    command = LARGE + backend
    h100, b200, l40s = (bound(command, cluster=name).space for name in ("h100x8", "b200x8", "l40sx8"))
    device = h100.read.job.device
    assert device.share == 1.0 and device.fast_domain == 8 and device.fast_link.bytes_per_s > 1e11
    assert 70 * 2**30 < device.memory_bytes < 80 * 2**30
    assert all(each.memory_bytes <= device.memory_bytes for each in h100.plan.ranked)
    best = [space.plan.ranked[0].step_s for space in (b200, h100, l40s)]
    assert best == sorted(best) and best[0] < 0.7 * best[1] and 0.1 < best[1] < 10
    assert bound(command, cluster="h100x8", memory_gib=200).space.read.job.device.memory_bytes == 200 * 2**30
    single = bound(command.replace("--bf16", ""), cluster="h100x8").space.plan.ranked[0]
    assert single.step_s > 3 * h100.plan.ranked[0].step_s
    assert bound(command.replace("-node 8", "-node 16"), cluster="h100x16").space.read.job.device.fast_domain == 8


def test_a_point_becomes_options_of_the_example() -> None:
    preset = bound()
    apart = preset.apply_parameters(COMMAND, point(encoder_ranks=1, llm_tp=1, llm_pp=3, mbs=1))
    words = shlex.split(apart)
    expected = {"--encoder-tp": 1, "--encoder-pp": 1, "--encoder-dp": 1, "--llm-tp": 1, "--llm-pp": 3, "--llm-dp": 1}
    for option, value in {**expected, "--llm-offset": 1, "--micro-batch-size": 1}.items():
        assert words[words.index(option) + 1] == str(value)
    shared = preset.apply_parameters(apart, point(encoder_ranks=0, llm_recompute=True))
    assert "--llm-offset 0" in shared and "--encoder-dp 4" in shared and "--llm-dp 2" in shared
    assert shared.endswith("--llm-recompute") and "--encoder-recompute" not in shared
    assert "recompute" not in preset.apply_parameters(shared, point())


def test_placeholders_are_filled_and_the_rest_is_set() -> None:
    command = "TP={llm_tp} python mimo_train.py --encoder-dp {encoder_dp} --micro-batch-size {mbs}"
    preset = bound(command, n_gpus=4)
    written = preset.apply_parameters(command, point())
    assert written.startswith("TP=2 python mimo_train.py --encoder-dp 2 --micro-batch-size 2 ")
    assert "--llm-tp" not in written and written.count("--encoder-dp") == 1
    assert "--llm-dp 1" in written


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoder_ranks": 3, "encoder_tp": 2}, ("tp * pp", "encoder", 2, 3)),
        ({"encoder_ranks": 0, "llm_pp": 2}, ("pipelined",)),
        ({"encoder_ranks": 2, "llm_tp": 1, "mbs": 1, "encoder_tp": 2}, None),
        ({"mbs": 1}, ("encoder's dp",)),
        ({}, None),
    ],
)
def test_points_that_cannot_run_are_pruned_with_their_reason(changes: dict[str, object], named: Any) -> None:
    reason = bound().explain(point(**changes))
    assert reason is None if named is None else mentions(reason, *named)


def test_points_are_the_plan_in_its_order_and_all_can_run() -> None:
    preset = bound()
    points = list(preset.points())
    ranked = preset.space.plan.ranked
    assert [preset.label(each) for each in points] == [each.candidate.label for each in ranked]
    assert len(points) > 20 and not any(preset.prune(each) for each in points)


def test_memory_leaves_layouts_out_or_has_them_recompute() -> None:
    sizes = sorted(each.memory_bytes / 2**30 for each in bound().space.plan.ranked)
    tight = bound(memory_gib=sizes[3])
    assert 0 < len(tight.space.plan.ranked) < len(sizes)
    assert mentions(tight.notes(COMMAND)[0], tight.space.plan.num_too_large, "memory")
    large = next(each for each in bound().points() if bound().space.explain(each) is None and tight.prune(each))
    assert mentions(tight.explain(large), f"{sizes[3]:.3g} GiB")


def test_the_best_layouts_and_the_best_homogeneous_ones_are_tried() -> None:
    preset = bound("python mimo_train.py --images 4,0,0,0", n_gpus=4, cores=4, top=2)
    strategy = preset.get_recommended_strategy()
    assert isinstance(strategy, MimoRankedStrategy) and strategy.ends_by_itself
    trials = ScriptedTrials(lambda params: 1.0)
    strategy.optimize(trials, preset.get_search_space(), preset.evaluator().direction)
    tried = [preset.space.candidate(params) for params in trials.points]
    plan = preset.space.plan
    assert 2 <= len(tried) <= (strategy.max_trials(preset.get_search_space()) or 0)
    assert [at.is_homogeneous for at in tried].count(True) >= 2
    assert plan.homogeneous[0].candidate in tried and plan.ranked[0].candidate in tried[:2]


@pytest.mark.parametrize(
    ("command", "cores", "share"),
    [
        ("python mimo_train.py --encoder-dp 2 --llm-tp 2", 2, 0.5),
        ("OMP_NUM_THREADS=4 python mimo_train.py --encoder-dp 2 --llm-tp 2", 2, 0.5),  # its own ranks have one thread
        ("python mimo_train.py --encoder-dp 2 --llm-tp 2", 8, 1.0),
        ("torchrun --nproc-per-node 4 mimo_train.py", 2, 0.5),
        ("OMP_NUM_THREADS=2 torchrun --nproc-per-node 4 mimo_train.py", 4, 0.5),
        ("torchrun --nnodes 2 --nproc-per-node 2 mimo_train.py", 2, 1.0),
    ],
)
def test_ranks_share_the_cores_of_their_host(
    command: str, cores: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert bound(command, cores=cores).space.read.job.device.share == share
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert bound(command).space.read.job.device.share == share
    assert any("cores" in note for note in bound(command).notes(command)) == (share < 1)


def test_ranks_with_a_gpu_each_share_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = listed("NVIDIA H100 80GB HBM3", 4)
    install_machine(tmp_path / "nvidia-smi", gpus, matrix(uniform(4, "NV18")))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    for ranks, share in ((4, 1.0), (8, 0.25)):
        command = f"torchrun --nproc-per-node {ranks} mimo_train.py"
        device = bound(command).space.read.job.device
        assert (device.share, device.fast_domain) == ((share, 4) if share == 1 else (share, 1))
    assert any("cores" in note for note in bound(command).notes(command)) == (share < 1)


@pytest.mark.parametrize(
    ("encoder", "language", "encoder_ranks", "is_homogeneous"),
    [
        ((2, 1), (2, 1), 0, True),  # one layout for both on all ranks
        ((1, 1), (2, 1), 0, False),
        ((1, 1), (1, 3), 1, True),  # a plain pipeline whose first stage is the encoder
        ((2, 1), (2, 1), 2, True),
        ((1, 2), (1, 1), 2, False),  # dp 1 against dp 2
    ],
)
def test_homogeneous_is_what_needs_no_layouts_of_their_own(
    encoder: tuple[int, int], language: tuple[int, int], encoder_ranks: int, is_homogeneous: bool
) -> None:
    at = MimoCandidate.of(4, encoder=encoder, language=language, encoder_ranks=encoder_ranks, micro_batch=1)
    assert at.is_homogeneous == is_homogeneous


@pytest.mark.parametrize(
    ("args", "command", "message"),
    [
        ({"top": 0}, COMMAND, "top.*got 0"),
        ({"device_flops": -1.0}, COMMAND, "device_flops.*got -1"),
        ({"images": "1,2"}, COMMAND, r"images.*2\+1\+3\+0.*'1,2'"),
        ({}, "python train.py", r"mimo_train\.py.*pretrain_mimo\.py"),
        ({}, "python mimo_train.py --images 1,x", "--images.*'1,x'"),
        ({"n_gpus": 1}, COMMAND, "2 to 4096 ranks.* 1"),
        ({"memory_gib": 1e-9}, COMMAND, "GiB.*smallest"),
    ],
)
def test_mistakes_are_reported_in_one_line(args: dict[str, object], command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        bound(command, **args)
    assert "\n" not in str(caught.value)


def test_a_preset_without_a_command_says_what_it_lacks() -> None:
    with pytest.raises(UsageError, match="command"):
        MimoPreset().get_search_space()


def test_the_strategy_named_by_hand_points_to_the_preset(tmp_path: Path) -> None:
    tuner = PresetTuner(COMMAND, preset="mimo", strategy="mimo-ranked", output_dir=tmp_path)
    with pytest.raises(UsageError, match="--preset mimo"):
        tuner.strategy.prepare(tuner.tuned_job())


def test_a_guessed_speed_is_noted() -> None:
    assert any("guesses" in note for note in bound("python mimo_train.py").notes(COMMAND))
    assert not any("guesses" in note for note in bound("python mimo_train.py", device_flops=2e9).notes(COMMAND))


def test_defaults_are_those_of_the_example() -> None:
    need_module("engines", "zenith_mimo")
    spec = importlib.util.spec_from_file_location("mimo_train", ROOT / "examples" / "mimo_train.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options = vars(example.read_options([]))
    assert {name: options[name.replace("-", "_")] for name in DEFAULTS} == DEFAULTS
    assert options["images"] == IMAGES


def test_a_plan_needs_no_torch() -> None:
    code = f"import sys; from zenith_mimo.preset.preset import MimoPreset; MimoPreset().bind({COMMAND!r})"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], cwd=ROOT)
    assert done.returncode == 0


Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_dry_run_shows_the_planned_step_stages_and_memory_of_each_layout(zenithtune: Run) -> None:
    wanted = ["optimize", "--preset", "mimo", "--no-baseline", "--dry-run"]
    text, lines = (zenithtune(*wanted, *more, "--", *COMMAND.split()).stdout for more in ([], ["--json"]))
    runs = [event for event in map(json.loads, lines.splitlines()) if event["event"] == "would_run"]
    assert len(runs) == text.count("\ntrial ") >= 2
    planned = bound()
    for run in runs:
        expected = planned.space.predict(run["parameters"])
        predicted = run["predicted"]
        assert (predicted["step_s"], predicted["memory_bytes"]) == (expected.step_s, expected.memory_bytes)
        stages = (expected.encoder_stage_s, expected.language_stage_s)
        assert (predicted["encoder_stage_s"], predicted["llm_stage_s"]) == stages
        line = text.partition(f"{run['command']}\n")[2].partition("\n")[0]
        assert mentions(line, *[f"{seconds * 1e3:.1f} ms" for seconds in (expected.step_s, *stages)])
        assert mentions(line, f"{expected.memory_bytes / 2**30:.3g} GiB", "mimo")


@pytest.mark.parametrize("options", [(), ("--cluster", "h100x8")])
def test_a_plan_of_such_a_command_names_the_way_to_its_ranking(zenithtune: Run, options: tuple[str, ...]) -> None:
    done = zenithtune("plan", *options, "--", *COMMAND.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert mentions(done.stderr, "optimize", "--dry-run")
    assert recognised_preset(COMMAND) == "mimo"


def test_planning_needs_no_torch() -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import zenith_mimo.command, zenith_mimo.preset.strategy
from zenith_mimo.preset.preset import MimoPreset
preset = MimoPreset(cluster="h100x8")
preset.bind({COMMAND!r})
print(len(preset.space.plan.ranked))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert int(done.stdout) > 10, done.stderr


def test_both_examples_are_recognised_by_themselves() -> None:
    for script in ("examples/mimo_train.py", "examples/mimo/pretrain_mimo.py"):
        assert recognised_preset(f"torchrun --nproc-per-node 4 {script} --micro-batch-size 1") == "mimo"


def test_what_the_example_freezes_has_no_optimizer_and_less_of_a_backward_pass() -> None:
    def job_of(more: str) -> MimoJob:
        preset = MimoPreset()
        preset.bind(f"{COMMAND} {more}")
        return preset.space.read.job

    plain, frozen = job_of(""), job_of("--freeze-vit --freeze-lm --bf16")
    shares = [
        (p.first.backward_share, p.layer.backward_share, p.last.backward_share)
        for p in (frozen.encoder, frozen.language)
    ]
    assert shares == [(0, 0, 1), (1, 1, 1)]
    assert plain.encoder.layer.backward_share == plain.language.layer.backward_share == 2
    assert (plain.device.number_bytes, frozen.device.number_bytes) == (4, 2)


SCRIPT = "from zenith_mimo.command import add_layout_options, run\n"
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
SIGLIP |= {"num_attention_heads": 16, "image_size": 224, "patch_size": 14}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "head_dim": 128,
}
QWEN3 |= {"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True}


def own_script(folder: Path, text: str = SCRIPT) -> str:
    (folder / "train.py").write_text(text)
    for name, config in (("siglip", SIGLIP), ("qwen3", QWEN3)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return f"torchrun --nproc-per-node 8 {folder}/train.py"


def test_a_script_of_your_own_is_planned_by_the_folders_of_its_models(tmp_path: Path) -> None:
    command = f"{own_script(tmp_path)} --vision {tmp_path}/siglip --language={tmp_path}/qwen3 --seq-length 4096 --bf16"
    assert recognised_preset(command) == "mimo"
    preset = bound(command, cluster="h100x8")
    job = preset.space.read.job
    assert (job.encoder.num_layers, job.language.num_layers, job.global_batch, job.items) == (27, 28, 16, (1,))
    assert {each.candidate.language.tp for each in preset.space.plan.ranked} > {1}
    assert {each.candidate.language.pp for each in preset.space.plan.ranked} > {1}
    assert {each.candidate.encoder.pp for each in preset.space.plan.ranked} > {1}
    best = preset.space.point(preset.space.plan.ranked[0].candidate)
    assert mentions(preset.apply_parameters(command, best), "--encoder-dp", "--llm-offset", "--micro-batch-size")


def test_a_script_of_your_own_is_planned_by_the_sizes_that_are_given(tmp_path: Path) -> None:
    command = f"{own_script(tmp_path)} --global-batch-size 32"
    sizes: dict[str, int | None] = {"encoder_layers": 4, "encoder_hidden": 64, "encoder_heads": 4}
    sizes |= {"encoder_patches": 16, "llm_layers": 6, "llm_hidden": 128, "llm_heads": 8}
    sizes |= {"seq_length": 64, "vocab_size": 1000}
    job = bound(command, **sizes).space.read.job
    assert (job.encoder.num_layers, job.language.num_layers, job.global_batch) == (4, 6, 32)
    with pytest.raises(UsageError, match="llm_hidden"):
        bound(command, **{**sizes, "llm_hidden": None})


@pytest.mark.parametrize("text", ["import torch\n", "# from zenith_mimo.command import run\n"])
def test_a_script_without_the_layouts_options_is_not_recognised(tmp_path: Path, text: str) -> None:
    command = own_script(tmp_path, text)
    assert not MimoPreset.recognises(command)
    with pytest.raises(UsageError, match=r"zenith_mimo\.command"):
        bound(command)
