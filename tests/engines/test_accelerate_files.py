"""Every key of our files beside Accelerate's own classes and launcher, and each of its traps."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.conftest import ENGINE_ENV
from tests.presets.accelerate.jobs import bound, command, point, write
from tests.requirements import need_module
from zenith_tune.errors import UnknownNameError
from zenith_tune.presets.accelerate.emit import DS_FILE, HOOK_FILES
from zenith_tune.presets.accelerate.live import FIELDS, PLUGINS
from zenith_tune.presets.accelerate.preset import AcceleratePreset
from zenith_tune.presets.shared.accelerate_launch import FILE_NAME
from zenith_tune.presets.shared.accelerate_settings import (
    CHECKED_VERSION,
    FIELDS_OF_THE_JSON,
    ONLY_AS_OPTIONS,
    SECTIONS,
    TOP,
    AccelerateSettings,
)
from zenith_tune.shell.launcher_catalog import LAUNCHERS
from zenith_tune.study.parameters import Params

pytestmark = pytest.mark.usefixtures("accelerate")
MEGATRON_LM = "MEGATRON_LM"


@pytest.fixture(scope="module")
def accelerate() -> None:
    for module in ("torch", "accelerate", "deepspeed"):
        need_module("engines", module)


def parsed(path: Path, *options: str) -> Any:
    """Return the options that the launcher works with: its own defaults, the file, and the command's options."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    args = launch_command_parser().parse_args(["--config_file", str(path), *options, "train.py"])
    found, defaults, from_file = _validate_launch_command(args)
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
    found.deepspeed_fields_from_accelerate_config = ",".join(fields)
    return found


def exported(path: Path, *options: str) -> dict[str, str]:
    """Return the variables that the launcher gives to every process."""
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    args = parsed(path, *options)
    env = prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)
    return dict(env)


def launched(preset: AcceleratePreset, folder: Path, params: Params, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the plugin that a process gets from a trial's files."""
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin, MegatronLMPlugin

    for name, text in preset.files(params).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    path = folder / FILE_NAME
    options = ("--deepspeed_config_file", str(folder / DS_FILE)) if (folder / DS_FILE).exists() else ()
    variables = exported(path, *options)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if "ACCELERATE_USE_MEGATRON_LM" in variables:
        return MegatronLMPlugin()
    return FullyShardedDataParallelPlugin() if "ACCELERATE_USE_FSDP" in variables else DeepSpeedPlugin()


def single_machine(folder: Path, kind: str, section: str | None = None, **args: Any) -> AcceleratePreset:
    return bound(command(write(folder, kind, section), options="--num_machines 1 --machine_rank 0"), **args)


def test_the_names_are_those_of_the_installed_release() -> None:
    import accelerate as package
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    assert package.__version__ == CHECKED_VERSION
    assert set(ClusterConfig.__dataclass_fields__) == TOP
    known = {action.dest for action in launch_command_parser()._actions}
    for section, keys in SECTIONS.items():
        assert keys - {"fsdp_ignored_modules"} <= known, section
    for prefix, section in {"megatron_lm_": "megatron_lm_config", "fsdp_": "fsdp_config", "fp8_": "fp8_config"}.items():
        assert {name for name in known if name.startswith(prefix)} <= SECTIONS[section]
    group = next(each for each in launch_command_parser()._action_groups if each.title == "DeepSpeed Arguments")
    assert {action.dest for action in group._group_actions} == SECTIONS["deepspeed_config"]


def test_the_options_that_take_a_value_are_those_of_the_installed_launcher() -> None:
    from accelerate.commands.launch import launch_command_parser

    values, flags = set(), set()
    for action in launch_command_parser()._actions:
        names = {option.lstrip("-").replace("_", "-") for option in action.option_strings}
        if action.nargs == 0:
            flags |= names
        else:
            assert not names or action.nargs is None, "a value is one word"
            values |= names
    known = LAUNCHERS["accelerate"]
    families = tuple(name.removesuffix("*") for name in known.values if name.endswith("*"))
    assert {name for name in values if not name.startswith(families)} <= known.values.keys()
    assert flags - {"h", "help"} <= known.flags
    assert {name for name in known.values if not name.endswith("*")} <= values
    assert known.flags - flags == {"ipex", "use-xpu"}, "of older releases"


@pytest.mark.parametrize("kind", ["MEGATRON_LM", "DEEPSPEED", "FSDP", "MULTI_GPU"])
def test_every_key_of_a_trials_file_arrives_at_the_launcher(tmp_path: Path, kind: str) -> None:
    preset = single_machine(tmp_path, kind)
    path = tmp_path / FILE_NAME
    for params in list(preset.points())[:25]:
        text = preset.files(params)[FILE_NAME]
        path.write_text(text)
        args = parsed(path)
        settings = AccelerateSettings(values=yaml.safe_load(text))
        for section, keys in SECTIONS.items():
            for key in keys & set(settings.values.get(section, {})):
                assert str(getattr(args, key)) == str(settings.get(key)), key
        assert (args.num_processes, args.num_machines, args.main_process_port) == (16, 1, 29501)
        assert args.mixed_precision == "bf16"


def test_megatron_values_reach_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = single_machine(tmp_path, MEGATRON_LM)
    params = point(preset, tp=2, pp=4, sp=True, zero=1, recompute="none", mbs=4)
    plugin = launched(preset, tmp_path, params, monkeypatch)
    wanted = preset.asked(params).settings
    plugin.set_training_args(4, 16 // (plugin.tp_degree * plugin.pp_degree))
    assert {name: plugin.megatron_lm_default_args[name] for name in wanted} == wanted
    assert plugin.gradient_clipping == 0.5 and plugin.expert_tensor_parallel_size == 1


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_values_reach_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    preset = single_machine(tmp_path, "DEEPSPEED")
    params = point(preset, stage=stage, offload_optimizer="cpu" if stage else "none", mbs=4)
    plugin = launched(preset, tmp_path, params, monkeypatch)
    wanted = preset.asked(params).settings
    assert {name: getattr(plugin, name) for name in wanted} == wanted
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == 2
    assert plugin.deepspeed_config["gradient_clipping"] == 1.0


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp_values_reach_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reshard: bool) -> None:
    preset = single_machine(tmp_path, "FSDP")
    params = point(preset, reshard=reshard, checkpointing=not reshard)
    plugin = launched(preset, tmp_path, params, monkeypatch)
    wanted = preset.asked(params).settings
    assert {name: getattr(plugin, name) for name in wanted} == wanted


def test_a_context_size_that_is_left_out_is_2_and_ours_never_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.utils import MegatronLMPlugin

    own = exported(write(tmp_path, MEGATRON_LM), "--num_machines", "1")
    assert "MEGATRON_LM_CONTEXT_PARALLEL_SIZE" not in own and MegatronLMPlugin().context_parallel_size == 2
    preset = single_machine(tmp_path, MEGATRON_LM)
    assert launched(preset, tmp_path, point(preset), monkeypatch).context_parallel_size == 1


def test_an_unknown_key_of_a_section_is_ignored_in_silence_and_ours_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, MEGATRON_LM, "megatron_lm_config:\n  megatron_lm_made_up: 3\n")
    assert not any("MADE_UP" in name for name in exported(path, "--num_machines", "1"))
    with pytest.raises(UnknownNameError, match="megatron_lm_tp_degre"):
        AccelerateSettings().having({"megatron_lm_tp_degre": 2})


def test_recompute_activations_goes_nowhere_and_ours_is_not_written(tmp_path: Path) -> None:
    from accelerate.utils import MegatronLMPlugin

    on, off = (MegatronLMPlugin(recompute_activations=value).megatron_lm_default_args for value in (True, False))
    assert on == off and not any("recompute_activations" in name for name in on)
    preset = single_machine(tmp_path, MEGATRON_LM)
    assert all("recompute_activations" not in preset.files(params)[FILE_NAME] for params in preset.points())


@pytest.mark.slow
def test_what_we_write_for_recomputation_is_what_megatron_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.utils import MegatronLMPlugin

    preset = single_machine(tmp_path, MEGATRON_LM)
    plugins = {
        kind: launched(preset, tmp_path, point(preset, recompute=kind), monkeypatch) for kind in ("none", "full")
    }
    assert plugins["none"].recompute_num_layers == 0 and plugins["full"].recompute_num_layers == 1
    selective = MegatronLMPlugin(recompute_granularity="selective")
    said = megatron_says([*plugins.values(), selective])
    assert said[:2] == ["taken", "taken"] and "recompute_num_layers must be None" in said[2]


def megatron_says(plugins: list[Any]) -> list[str]:
    """Return what Megatron Core says of each plugin's recomputation, in a process of its own."""
    need_module("engines", "megatron")
    names = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    given = [{name: plugin.megatron_lm_default_args[name] for name in names} for plugin in plugins]
    program = (
        "from megatron.core.transformer.transformer_config import TransformerConfig\n"
        f"for given in {given}:\n"
        "    try:\n        TransformerConfig(num_layers=4, hidden_size=64, num_attention_heads=4, **given)\n"
        "    except ValueError as error:\n        print(error)\n"
        "    else:\n        print('taken')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, **ENGINE_ENV},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_data_parallelism_ignores_the_context_size_and_our_batch_is_what_accelerate_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import Accelerator

    formula = "self.num_processes // (megatron_lm_plugin.tp_degree * megatron_lm_plugin.pp_degree)"
    assert formula in inspect.getsource(Accelerator._prepare_megatron_lm)
    preset = single_machine(tmp_path, MEGATRON_LM, search="default+cp")
    params = point(preset, tp=2, pp=2, cp=2, mbs=1)
    plugin = launched(preset, tmp_path, params, monkeypatch)
    plugin.set_training_args(1, 16 // (2 * 2))
    assert plugin.global_batch_size == preset.layout(params).global_batch == 16


def test_paths_for_nvme_are_exported_to_nobody_and_ours_arrive_by_a_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (
        "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 4\n"
        "  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /disk\n"
    )
    own = exported(write(tmp_path, "DEEPSPEED", section), "--num_machines", "1")
    assert not any("NVME" in name for name in own)
    preset = single_machine(tmp_path, "DEEPSPEED", section)
    plugin = launched(preset, tmp_path, point(preset), monkeypatch)
    zero = plugin.deepspeed_config["zero_optimization"]
    assert zero["offload_optimizer"]["nvme_path"] == "/disk" and plugin.zero_stage == 3


@pytest.mark.parametrize("key", FIELDS_OF_THE_JSON)
def test_what_accelerate_refuses_beside_a_json_is_not_in_our_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    from accelerate.utils import DeepSpeedPlugin

    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    preset = single_machine(tmp_path, "DEEPSPEED", f"deepspeed_config:\n  deepspeed_config_file: {path}\n")
    assert launched(preset, tmp_path, point(preset), monkeypatch).zero_stage == 1
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", key)
    with pytest.raises(ValueError, match="will be ignored"):
        DeepSpeedPlugin()


def test_what_the_launcher_takes_from_options_alone_is_left_there(tmp_path: Path) -> None:
    values = {"same_network": True, "rdzv_backend": "c10d", "enable_cpu_affinity": True, "downcast_bf16": True}
    assert set(values) == ONLY_AS_OPTIONS
    path = tmp_path / FILE_NAME
    path.write_text(AccelerateSettings(values={"distributed_type": "MULTI_GPU", "num_processes": 2, **values}).text)
    args = parsed(path)
    assert {name: getattr(args, name) for name in values if getattr(args, name) == values[name]} == {}


def test_what_is_read_of_a_plugin_is_a_field_of_it_that_only_the_script_sets() -> None:
    from accelerate import utils

    for backend, name in PLUGINS.items():
        fields = {field.name: field for field in dataclasses.fields(getattr(utils, name))}
        for each in FIELDS[backend]:
            assert fields[each.argument].default is None, "left out, it is read from the environment"


def test_the_hook_notes_what_a_script_gives_to_the_real_plugins(tmp_path: Path, python: str) -> None:
    for name, text in HOOK_FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    program = (
        "from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin, MegatronLMPlugin\n"
        "import json, sys\n"
        "MegatronLMPlugin(tp_degree=2, num_micro_batches=4)\n"
        "FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=False)\n"
        "watch = MegatronLMPlugin.__init__.__closure__\n"
        "[found] = [cell.cell_contents for cell in watch if type(cell.cell_contents).__name__ == 'Watch']\n"
        "print(json.dumps(found.given))\n"
    )
    env = {**os.environ, **ENGINE_ENV, "PYTHONPATH": str(tmp_path / "hook")}
    done = subprocess.run([python, "-c", program], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    given = json.loads(done.stdout.splitlines()[-1])
    assert given["MegatronLMPlugin"] == {"tp_degree": 2, "num_micro_batches": 4}
    assert given["FullyShardedDataParallelPlugin"] == {"fsdp_version": 2, "reshard_after_forward": False}
