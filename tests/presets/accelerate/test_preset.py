from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_runs import running
from tests.mentions import mentions
from tests.presets.accelerate.jobs import bound, choices, command, config_of, point, write
from zenith_tune import PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.preset import RESULT_CONFIG, AcceleratePreset
from zenith_tune.presets.deepspeed.preset import DeepSpeedPreset
from zenith_tune.presets.shared.accelerate_launch import FILE_NAME
from zenith_tune.shell import ParsedCommand
from zenith_tune.testing import PresetContract

KINDS = ("MEGATRON_LM", "DEEPSPEED", "FSDP", "MULTI_GPU")


class TestMegatronContract(PresetContract):
    kind = "MEGATRON_LM"

    @pytest.fixture(autouse=True)
    def _written(self, tmp_path: Path) -> None:
        self.text = command(write(tmp_path, self.kind))

    def make(self) -> AcceleratePreset:
        return bound(self.text)

    def command(self) -> str:
        return self.text


class TestDeepSpeedContract(TestMegatronContract):
    kind = "DEEPSPEED"


class TestFsdpContract(TestMegatronContract):
    kind = "FSDP"


class TestPlainContract(TestMegatronContract):
    kind = "MULTI_GPU"


def test_each_backend_has_a_space_of_its_own(tmp_path: Path) -> None:
    spaces = {kind: choices(bound(command(write(tmp_path, kind)))) for kind in KINDS}
    assert spaces["MEGATRON_LM"] == {
        "tp": [4, 1, 2, 8],
        "pp": [2, 1, 4, 8, 16],
        "cp": [1],
        "ep": [1],
        "etp": [1],
        "sp": [False, True],
        "zero": [0, 1],
        "recompute": ["full", "none"],
        "mbs": [2, 1, 4, 8, 16],
    }
    assert spaces["DEEPSPEED"] == {
        "stage": [2, 0, 1, 3],
        "offload_optimizer": ["none", "cpu"],
        "offload_param": ["none", "cpu"],
        "mbs": [2, 1, 4, 8],
    }
    assert spaces["FSDP"] == {"reshard": [True, False], "checkpointing": [False, True], "mbs": [2, 1]}
    assert spaces["MULTI_GPU"] == {"mbs": [2, 1]}


def test_tensor_parallelism_stays_on_one_machine(tmp_path: Path) -> None:
    path = write(tmp_path, "MEGATRON_LM")
    assert max(map(int, choices(bound(command(path)))["tp"])) == 8
    single = bound(command(path, options="--num_machines 1"))
    assert max(map(int, choices(single)["tp"])) == 16


@pytest.mark.parametrize("kind", KINDS)
def test_the_effective_batch_is_the_same_at_every_point(tmp_path: Path, kind: str) -> None:
    text = command(write(tmp_path, kind))
    preset = bound(text)
    own = preset.layout(point(preset)).global_batch
    seen = set()
    for params in preset.points():
        layout, line = preset.layout(params), ParsedCommand.of(preset.apply_parameters(text, params))
        mbs = int(str(line.get("--batch_size")))
        config = config_of(preset, **params)
        if kind == "MEGATRON_LM":
            steps = config["megatron_lm_config"]["megatron_lm_num_micro_batches"]
        elif kind == "DEEPSPEED":
            steps = config["deepspeed_config"]["gradient_accumulation_steps"]
        else:
            steps = int(line.text.partition("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=")[2].split()[0])
        assert mbs * steps * layout.dp == own
        seen.add(mbs)
    assert len(seen) > 1


def test_multi_machine_fields_are_carried_over_and_the_users_file_stays(tmp_path: Path) -> None:
    path = write(tmp_path, "DEEPSPEED")
    before = path.read_bytes()
    config = config_of(bound(command(path)), stage=3)
    fields = ("num_machines", "machine_rank", "main_process_ip", "main_process_port", "num_processes", "same_network")
    assert [config[name] for name in fields] == [2, 1, "10.0.0.1", 29501, 16, True]
    assert config["deepspeed_config"]["deepspeed_multinode_launcher"] == "standard"
    assert path.read_bytes() == before


def test_options_of_the_launcher_go_into_the_file_because_they_would_win_over_it(tmp_path: Path) -> None:
    options = "--use_deepspeed --zero_stage 1 --num_processes=4 --num-machines 1 --mixed_precision no --tee 3"
    text = command(write(tmp_path, "MULTI_GPU"), options=options)
    preset = bound(text)
    written = preset.apply_parameters(text, point(preset, stage=3))
    for gone in ("zero_stage", "num_processes", "use_deepspeed", "num-machines", "mixed_precision"):
        assert gone not in written
    assert "--tee 3" in written
    config = config_of(preset, stage=3)
    assert (config["distributed_type"], config["num_processes"], config["num_machines"]) == ("DEEPSPEED", 4, 1)
    assert config["mixed_precision"] == "no" and config["deepspeed_config"]["zero_stage"] == 3


def test_what_only_the_shell_knows_stays_in_the_command(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"), options="--machine_rank $SLURM_NODEID --main_process_ip $HEAD")
    preset = bound(text)
    written = preset.apply_parameters(text, point(preset))
    assert "--machine_rank $SLURM_NODEID --main_process_ip $HEAD" in written


def test_the_result_needs_neither_hook_nor_trial_folder(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"))
    preset = bound(text)
    best = point(preset, reshard=False, mbs=1)
    line = preset.result_command(text, best, tmp_path / "a study")
    assert f"--config_file '{tmp_path}/a study'/{RESULT_CONFIG}" in line
    assert "PYTHONPATH" not in line and "{" not in line
    [left] = preset.result_files(best)
    assert left == RESULT_CONFIG
    assert preset.result_files(best)[left] == preset.files(best)[FILE_NAME]


def test_the_baseline_is_the_users_own_command_with_the_hook(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"))
    preset = bound(text)
    assert preset.baseline_command(text) == text.replace(
        "accelerate launch", "env PYTHONPATH={trial_folder}/hook${PYTHONPATH:+:$PYTHONPATH} accelerate launch"
    )
    names = ("__init__", "process", "stages", "accelerate", "model")
    package = {f"hook/zenithtune_hooks/{name}.py" for name in names}
    assert set(preset.baseline_files()) == {"hook/sitecustomize.py", "hook/hooks.json", *package}


def test_without_an_option_for_the_batch_only_the_rest_is_tuned(tmp_path: Path) -> None:
    text = command(write(tmp_path, "MEGATRON_LM"), more="")
    preset = bound(text)
    assert "mbs" not in preset.get_search_space()
    assert "steps/s" in " ".join(preset.warnings(text))
    for tp, steps in {8: 8, 4: 4, 2: 2}.items():
        assert config_of(preset, tp=tp)["megatron_lm_config"]["megatron_lm_num_micro_batches"] == steps
    assert mentions(preset.explain(point(preset, tp=1, pp=1)), "1 * 16", 8)
    plain = bound(command(write(tmp_path, "MULTI_GPU"), more=""))
    with pytest.raises(UsageError, match="mbs_option"):
        plain.read_baseline("")


def test_the_option_for_the_batch_may_have_any_name(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"), more="--bsz 4")
    preset = bound(text, mbs_option="--bsz")
    assert choices(preset)["mbs"] == [4, 1, 2]
    assert "--bsz 2" in preset.apply_parameters(text, point(preset, mbs=2))
    with pytest.raises(UsageError, match="mbs_option"):
        AcceleratePreset(mbs_option="bsz")


def test_the_trainer_gets_its_own_arguments(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"), more="--output_dir out --per_device_train_batch_size 4")
    preset = bound(text)
    written = preset.apply_parameters(text, point(preset, mbs=1))
    assert written.endswith("--per_device_train_batch_size 1 --gradient_accumulation_steps 4")
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS" not in written


def test_placeholders_carry_the_batch(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"), more="--data.batch={mbs} --data.steps {gas}")
    preset = bound(text, gbs=64)
    written = preset.apply_parameters(text, point(preset, mbs=2))
    assert "--data.batch=2 --data.steps 2" in written


def test_the_tuner_recognises_the_command_and_leaves_a_json_to_deepspeed(tmp_path: Path) -> None:
    tuner = PresetTuner(command(write(tmp_path, "FSDP")), output_dir=tmp_path / "out")
    assert (tuner.config.preset_name, tuner.config.strategy_name) == ("accelerate", "grid")
    other = "accelerate launch --num_processes 4 train.py --deepspeed ds.json"
    assert DeepSpeedPreset.recognises(other) and not AcceleratePreset.recognises(other)
    assert not AcceleratePreset.recognises("torchrun train.py")
    assert not AcceleratePreset.recognises("accelerate config")


def test_strategies_follow_the_backend_and_what_is_known(tmp_path: Path) -> None:
    known = {"model": "llama2-7b", "seq": 2048, "cluster": "h100x16"}
    names = {}
    for kind in KINDS:
        text = command(write(tmp_path, kind))
        plain, planned = bound(text), bound(text, **known)
        names[kind] = [type(each.get_recommended_strategy()).__name__ for each in (plain, planned)]
    assert names == {
        "MEGATRON_LM": ["OptunaStrategy", "GuidedStrategy"],
        "DEEPSPEED": ["ZeroProgressiveStrategy", "ZeroProgressiveStrategy"],
        "FSDP": ["GridStrategy", "GuidedStrategy"],
        "MULTI_GPU": ["GridStrategy", "GuidedStrategy"],
    }


def test_a_plan_knows_model_cluster_and_framework(tmp_path: Path) -> None:
    text = command(
        write(tmp_path, "MEGATRON_LM"), more="--batch_size 2 --model_name_or_path llama2-7b --block_size 2048"
    )
    preset = bound(text, cluster="h100x16")
    subject = preset.subject(text)
    assert (subject.model.name, subject.job.framework.name, subject.job.precision) == ("llama2-7b", "megatron", "bf16")
    assert subject.cluster.num_gpus == 16
    with pytest.raises(UsageError, match="--model_name_or_path"):
        bound(command(write(tmp_path, "FSDP"))).subject("")


def test_the_own_point_is_what_the_job_has(tmp_path: Path) -> None:
    own = bound(command(write(tmp_path, "MEGATRON_LM"))).own_point("")
    assert own is not None
    assert (own["tp"], own["pp"], own["mbs"], own["recompute"], own["zero"]) == (4, 2, 2, "full", 0)


def test_labels_say_what_has_a_choice(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "MEGATRON_LM")))
    assert preset.label(point(preset, sp=True)) == "TP4 PP2 sp zero0 recompute=full mbs2"
    sharded = bound(command(write(tmp_path, "DEEPSPEED")))
    assert sharded.label(point(sharded)) == "Z2 mbs2"
    assert sharded.label(point(sharded, offload_optimizer="cpu")) == "Z2 offload_optimizer=cpu mbs2"
    assert bound(command(write(tmp_path, "FSDP"))).label({"reshard": False, "checkpointing": True, "mbs": 1}) == (
        "no-reshard checkpointing mbs1"
    )


def test_a_dry_run_says_what_only_a_run_can_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))\n")
    launch = ("--", "accelerate", "launch", "--multi_gpu", "--num_processes", "8", "train.py")
    done = running("optimize", capsys)("--dry-run", *launch)
    assert done.code == 0, done.err
    assert " ".join(launch[1:]) in done.out and "nothing to search" in done.out.splitlines()[-1]
    refused = running("optimize", capsys)("--dry-run", "--no-baseline", *launch)
    assert refused.code == 2 and "nothing to search" in refused.err
