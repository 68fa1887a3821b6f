"""What each backend's file says of a point, and which points are not worth a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.presets.accelerate.jobs import (
    DEEPSPEED,
    FSDP,
    MEGATRON,
    TOP,
    bound,
    choices,
    command,
    config_of,
    point,
    write,
)
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.emit import DS_FILE, DS_PATH
from zenith_tune.presets.accelerate.preset import AcceleratePreset
from zenith_tune.shell import ParsedCommand

NVME = """\
deepspeed_config:
  gradient_accumulation_steps: 4
  offload_optimizer_device: nvme
  offload_optimizer_nvme_path: /disk
  zero_stage: 3
"""


def part(config: dict[str, Any], section: str = "megatron_lm_config") -> dict[str, Any]:
    found: dict[str, Any] = config[section]
    return found


def test_a_megatron_file_says_everything_that_has_a_treacherous_default(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "MEGATRON_LM")))
    assert part(config_of(preset, tp=2, pp=4, sp=True, zero=1)) == {
        "megatron_lm_tp_degree": 2,
        "megatron_lm_pp_degree": 4,
        "megatron_lm_context_parallel_size": 1,
        "megatron_lm_expert_model_parallel_size": 1,
        "megatron_lm_expert_tensor_parallel_size": 1,
        "megatron_lm_num_micro_batches": 4,
        "megatron_lm_sequence_parallelism": True,
        "megatron_lm_use_distributed_optimizer": True,
        "megatron_lm_gradient_clipping": 0.5,
        "megatron_lm_recompute_granularity": "full",
        "megatron_lm_recompute_method": "uniform",
        "megatron_lm_recompute_num_layers": 1,
    }


def test_no_recomputation_is_a_block_of_no_layers(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "MEGATRON_LM")))
    found = part(config_of(preset, recompute="none"))
    assert (found["megatron_lm_recompute_method"], found["megatron_lm_recompute_num_layers"]) == ("block", 0)
    assert preset.layout(point(preset, recompute="none")).recompute == "none"
    again = write(tmp_path, "MEGATRON_LM", "megatron_lm_config:\n" + "".join(f"  {k}: {v}\n" for k, v in found.items()))
    assert choices(bound(command(again)))["recompute"] == ["none", "full"]


def test_selective_recomputation_is_for_a_script_that_asks_for_it(tmp_path: Path) -> None:
    text = command(write(tmp_path, "MEGATRON_LM"))
    assert "selective" not in choices(bound(text))["recompute"]
    assert any("other_megatron_args" in note for note in bound(text).warnings(text))
    preset = bound(text, recompute_option="--recompute")
    assert choices(preset)["recompute"] == ["full", "none", "selective"]
    params = point(preset, recompute="selective")
    assert preset.apply_parameters(text, params).endswith("--recompute selective")
    assert not any("recompute" in key for key in part(config_of(preset, recompute="selective")))
    assert preset.asked(params).settings["recompute_granularity"] == "selective"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tp": 1, "sp": True}, ("tp",)),
        ({"tp": 8, "pp": 4}, ("n_gpus", "tp", "pp", 16, 32)),
        ({"tp": 8, "pp": 2, "zero": 1}, ("dp", 1)),
        ({"mbs": 16, "tp": 1, "pp": 1}, ("micro-batch", "16 * 16")),
        ({"tp": 2, "sp": True}, None),
    ],
)
def test_megatron_points_that_are_not_worth_a_trial(tmp_path: Path, values: Any, named: Any) -> None:
    preset = bound(command(write(tmp_path, "MEGATRON_LM")))
    broken = preset.explain(point(preset, **values))
    assert broken is None if named is None else mentions(broken, *named)


def test_rules_of_the_model_where_it_is_known(tmp_path: Path) -> None:
    known = {"model": "llama2-7b", "seq": 2048, "cluster": "h100x16"}
    preset = bound(command(write(tmp_path, "MEGATRON_LM")), **known, search="default+ep")
    assert mentions(preset.explain(point(preset, ep=2, sp=True)), "ep", 1)
    assert preset.explain(point(preset, pp=4)) is None


def axes(preset: AcceleratePreset) -> dict[str, int]:
    return {name: len(parameter.grid(99)) for name, parameter in preset.get_search_space().items()}


def test_expert_degrees_are_searched_where_the_model_is_a_mixture(tmp_path: Path) -> None:
    own = command(write(tmp_path, "MEGATRON_LM"))
    mixture, dense = bound(own, model="mixtral-8x7b"), bound(own, model="llama2-7b")
    assert (axes(mixture)["ep"], axes(dense)["ep"], axes(bound(own))["ep"]) == (5, 1, 1)
    assert axes(bound(own, model="mixtral-8x7b", search="tp+pp"))["ep"] == 1, "what is named is all"
    assert any("search=default+cp " in note for note in mixture.warnings(own))
    assert any("search=default+cp+ep " in note for note in dense.warnings(own))


def test_degrees_that_the_file_has_above_one_are_searched(tmp_path: Path) -> None:
    sizes = "  megatron_lm_context_parallel_size: 2\n  megatron_lm_expert_model_parallel_size: 2\n"
    own = command(write(tmp_path, "MEGATRON_LM", MEGATRON + sizes))
    assert (axes(bound(own))["cp"], axes(bound(own))["ep"]) == (5, 5)
    assert not any("search=default" in note for note in bound(own).warnings(own))


def test_context_parallelism_counts_into_the_batch_as_accelerate_counts_it(tmp_path: Path) -> None:
    text = command(write(tmp_path, "MEGATRON_LM"))
    preset = bound(text, search="default+cp")
    params = point(preset, tp=2, pp=2, cp=2, mbs=1)
    layout = preset.layout(params)
    assert (layout.dp, layout.num_micro_batches) == (2, 8), "DP is n_gpus / (TP * PP * CP)"
    assert part(config_of(preset, **params))["megatron_lm_num_micro_batches"] * 4 * 1 == layout.global_batch
    assert any(mentions(note, "cp", "micro-batches") for note in preset.warnings(text))
    assert not any("cp above" in note for note in bound(text, search="tp").warnings(text))


def test_traps_of_the_users_own_file_are_noted(tmp_path: Path) -> None:
    text = command(write(tmp_path, "MEGATRON_LM", MEGATRON + "  megatron_lm_tp_degre: 2\n"))
    notes = bound(text).warnings(text)
    assert any(mentions(note, "megatron_lm_context_parallel_size", 2, 1) for note in notes)
    assert any(mentions(note, "megatron_lm_recompute_activations", "recompute_granularity") for note in notes)
    assert any(mentions(note, "megatron_lm_tp_degre") for note in notes)


def test_deepspeed_keys_follow_the_point(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "DEEPSPEED")))
    found = part(config_of(preset, stage=3, offload_param="cpu", mbs=4), "deepspeed_config")
    wanted = {
        "zero_stage": 3,
        "offload_param_device": "cpu",
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
    }
    assert {key: found[key] for key in wanted} == wanted
    assert mentions(preset.explain(point(preset, stage=2, offload_param="cpu")), "offload_param", 3)
    assert preset.explain(point(preset, stage=1, offload_optimizer="cpu")) is None


def test_flags_of_stage_3_are_off_below_it(tmp_path: Path) -> None:
    section = DEEPSPEED.replace("zero3_init_flag: false", "zero3_init_flag: true\n  zero3_save_16bit_model: true")
    preset = bound(command(write(tmp_path, "DEEPSPEED", section)))
    for stage, wanted in {3: True, 2: False}.items():
        found = part(config_of(preset, stage=stage), "deepspeed_config")
        assert (found["zero3_init_flag"], found["zero3_save_16bit_model"]) == (wanted, wanted)


def test_a_path_for_nvme_is_given_in_a_json_because_the_launcher_exports_it_to_nobody(tmp_path: Path) -> None:
    text = command(write(tmp_path, "DEEPSPEED", NVME))
    preset = bound(text)
    files = preset.files(point(preset))
    json_file = json.loads(files[DS_FILE])
    assert json_file["zero_optimization"]["offload_optimizer"] == {
        "device": "nvme",
        "pin_memory": True,
        "nvme_path": "/disk",
    }
    assert json_file["bf16"] == {"enabled": True} and json_file["gradient_accumulation_steps"] == 4
    assert "mixed_precision" not in config_of(preset) and "zero_stage" not in str(config_of(preset))
    written = preset.apply_parameters(text, point(preset))
    assert f"--deepspeed_config_file {DS_PATH} --mixed_precision bf16" in written
    assert preset.apply_parameters(written, point(preset)) == written
    on_cpu = json.loads(preset.files(point(preset, offload_optimizer="cpu"))[DS_FILE])
    assert on_cpu["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_a_json_of_the_users_is_copied_with_the_points_values(tmp_path: Path) -> None:
    own = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 1},
    }
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(own))
    section = f"deepspeed_config:\n  deepspeed_config_file: {path}\n"
    text = command(write(tmp_path, "DEEPSPEED", section), more="--batch_size 2 --gradient_accumulation_steps 4")
    preset = bound(text)
    params = point(preset, stage=3, mbs=4)
    assert json.loads(preset.files(params)[DS_FILE]) == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3},
    }
    line = ParsedCommand.of(preset.apply_parameters(text, params))
    assert (line.get("--batch_size"), line.get("--gradient_accumulation_steps")) == ("4", "2")
    assert json.loads(path.read_text()) == own
    left = preset.result_files(params)
    assert set(left) == {"accelerate_config_optimal.yaml", "ds_config_optimal.json"}
    assert f"{tmp_path}/s/ds_config_optimal.json" in preset.result_command(text, params, tmp_path / "s")


def test_memory_is_reckoned_for_deepspeed_where_the_model_is_known(tmp_path: Path) -> None:
    known = {"model": "llama2-70b", "seq": 2048, "cluster": "h100x16"}
    preset = bound(command(write(tmp_path, "DEEPSPEED")), **known)
    assert str(preset.explain(point(preset, stage=0))).startswith("needs ")
    assert preset.explain(point(preset, stage=3, offload_optimizer="cpu", mbs=1)) is None


def test_fsdp_keys_follow_the_point(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "FSDP")))
    found = part(config_of(preset, reshard=False, checkpointing=True), "fsdp_config")
    assert (found["fsdp_reshard_after_forward"], found["fsdp_activation_checkpointing"]) == (False, True)
    assert (found["fsdp_version"], found["fsdp_state_dict_type"]) == (2, "SHARDED_STATE_DICT")
    assert preset.layout(point(preset, reshard=False)).zero == 2


def test_offloaded_activations_are_dropped_with_checkpointing(tmp_path: Path) -> None:
    section = FSDP.replace("checkpointing: false", "checkpointing: true\n  fsdp_activation_checkpointing_offload: true")
    preset = bound(command(write(tmp_path, "FSDP", section)))
    assert "fsdp_activation_checkpointing_offload" in config_of(preset, checkpointing=True)["fsdp_config"]
    assert "fsdp_activation_checkpointing_offload" not in config_of(preset, checkpointing=False)["fsdp_config"]


def test_keys_without_their_prefix_are_read_too(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "FSDP", "fsdp_config:\n  version: 2\n  reshard_after_forward: false\n")))
    assert choices(preset)["reshard"] == [False, True]
    assert set(config_of(preset)["fsdp_config"]) >= {"fsdp_version", "fsdp_reshard_after_forward"}


def test_ranks_that_share_a_model_under_fsdp_are_no_data_parallel_ones(tmp_path: Path) -> None:
    extra = "parallelism_config:\n  parallelism_config_dp_shard_size: 8\n  parallelism_config_tp_size: 2\n"
    preset = bound(command(write(tmp_path, "FSDP", FSDP + extra)))
    assert preset.layout(point(preset)).global_batch == 2 * 8
    assert config_of(preset)["parallelism_config"]["parallelism_config_tp_size"] == 2


BOMB = "debug: &a0 [x]\ntpu_env:\n" + "".join(f"- &a{n + 1} [*a{n}, *a{n}]\n" for n in range(60)) + "{section}: *a60\n"
"""A list of 2 ** 60 words, as aliases of aliases."""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (TOP.format(kind="FSDP"), ("FSDP version 2",)),
        (TOP.format(kind="XLA"), ("XLA",)),
        (
            TOP.format(kind="FSDP").replace("num_processes: 16", "num_processes: many") + FSDP,
            ("num_processes",),
        ),
        (TOP.format(kind="FSDP") + "fsdp_conf:\n  a: 1\n", ("'fsdp_conf'", "'fsdp_config'")),
        (TOP.format(kind="FSDP") + "wholly_else: 1\n", ("'wholly_else'",)),
        (TOP.format(kind="FSDP").replace("num_machines: 2", "num_machines: 3") + FSDP, ("num_machines", 16, 3)),
        (BOMB.format(section="fsdp_config"), ("fsdp_config",)),
        (BOMB.format(section="num_processes"), ("num_processes",)),
        (TOP.format(kind="FSDP") + "gpu_ids: !!python/name:os.system\n", ("line 16",)),
        ("", ("empty",)),
        (TOP.format(kind="FSDP").replace("LOCAL_MACHINE", "AMAZON_SAGEMAKER"), ("AMAZON_SAGEMAKER",)),
        (TOP.format(kind="FSDP") + "fsdp_config: 3\n", ("fsdp_config", "keys")),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, named: tuple[object, ...]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        bound(command(path))
    assert mentions(caught.value, *named) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"n_gpus": 8}, ("n_gpus", 8, 16)),
        ({"gbs": 30}, (16, 30)),
        ({"search": "tp"}, ("'tp'", "reshard")),
        ({"search": "+"}, ("search", "search=default")),
    ],
)
def test_what_is_wrong_with_the_arguments_is_one_line(tmp_path: Path, args: Any, named: Any) -> None:
    with pytest.raises(UsageError) as caught:
        bound(command(write(tmp_path, "FSDP")), **args)
    assert mentions(caught.value, *named) and "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["--zero_stage $Z", "--config_file $FILE", "--num_processes $N"])
def test_what_a_trial_must_know_is_not_left_to_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    text = f"accelerate launch --use_deepspeed {option} train.py --batch_size 2"
    with pytest.raises(UsageError) as caught:
        bound(text)
    assert caught.value.hint
    assert option.split()[0] in caught.value.problem or "--gpus 8" in caught.value.hint


def test_a_number_that_the_shell_knows_may_be_given_beside_the_command(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP"), options="--num_processes $N")
    preset = bound(text, n_gpus=8)
    assert config_of(preset)["num_processes"] == 8
    assert "--num_processes $N" in preset.apply_parameters(text, point(preset))


def test_sections_of_other_backends_may_be_empty(tmp_path: Path) -> None:
    text = command(write(tmp_path, "FSDP", FSDP + "deepspeed_config: {}\nmegatron_lm_config: null\n"))
    assert set(config_of(bound(text))) & {"deepspeed_config", "megatron_lm_config"} == set()


def test_a_command_without_a_file_is_read_by_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    text = "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 4 --mixed_precision bf16 t.py --batch_size 2"
    config = config_of(bound(text), reshard=False)
    assert (config["distributed_type"], config["num_processes"], config["mixed_precision"]) == ("FSDP", 4, "bf16")
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(TOP.format(kind="FSDP") + FSDP)
    assert config_of(bound("accelerate launch t.py --batch_size 2"))["main_process_ip"] == "10.0.0.1"
