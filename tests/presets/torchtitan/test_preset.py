from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.presets.torchtitan.jobs import (
    ARGUMENTS,
    NUM_PARAMS,
    OF_PYTHON,
    SETTINGS,
    SIZE,
    TOKEN_SETTINGS,
    bound,
    log,
    of_file,
    seen,
    settings_log,
    steps,
)
from zenith_tune.errors import UsageError
from zenith_tune.presets.torchtitan.command import option_settings
from zenith_tune.presets.torchtitan.live import live_model
from zenith_tune.presets.torchtitan.log import TitanRun
from zenith_tune.presets.torchtitan.preset import TorchTitanPreset
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

TP, PP, CP = (f"parallelism.{name}_parallel_degree" for name in ("tensor", "pipeline", "context"))
REPLICATE, SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"


def written(preset: TorchTitanPreset, command: str, **changes: Any) -> dict[str, Any]:
    """Return the options of the command that a point is tried with, which differs from the job's own in some values."""
    own: Params = {name: parameter.grid(1)[0] for name, parameter in preset.get_search_space().items()}
    assert preset.explain({**own, **changes}) is None
    return option_settings(preset.apply_parameters(command, {**own, **changes}).split())


class TestFileContract(PresetContract):
    @pytest.fixture(autouse=True)
    def _written(self, tmp_path: Path) -> None:
        self.text = of_file(tmp_path)

    def make(self) -> TorchTitanPreset:
        return bound(self.text)

    def command(self) -> str:
        return self.text


class TestPythonContract(PresetContract):
    def make(self) -> TorchTitanPreset:
        return seen(SETTINGS)

    def command(self) -> str:
        return f"{OF_PYTHON} activation-checkpoint:full"


class TestTokensContract(TestPythonContract):
    def make(self) -> TorchTitanPreset:
        return seen(TOKEN_SETTINGS)


def test_a_toml_says_the_job_and_its_own_point_changes_the_batch_alone(tmp_path: Path) -> None:
    command = of_file(tmp_path)
    preset = bound(command)
    own = preset.own_point(command)
    assert own is not None and (own["mbs"], own["ac"], own["shard"]) == (2, "selective", "fsdp")
    added = preset.apply_parameters(command, own).removeprefix(command)
    assert option_settings(added.split()) == {"training.global_batch_size": 16}
    layout = preset.layout(own)
    assert (layout.global_batch, layout.dp, layout.zero, layout.recompute) == (16, 8, 3, "selective")
    assert preset.train_steps(command) == 1000


def test_no_point_changes_the_batch(tmp_path: Path) -> None:
    for preset, command in ((bound(of_file(tmp_path)), of_file(tmp_path)), (seen(SETTINGS), OF_PYTHON)):
        points = list(preset.points())
        assert len({preset.layout(point).global_batch for point in points}) == 1
        for point in points[:: max(len(points) // 40, 1)]:
            values, layout = option_settings(preset.apply_parameters(command, point).split()), preset.layout(point)
            own = values.get("training.local_batch_size", preset._space.job.micro_batch)
            assert values["training.global_batch_size"] % (own * layout.dp) == 0


def test_a_pipeline_has_all_of_a_ranks_samples_as_one_pass(tmp_path: Path) -> None:
    command = of_file(tmp_path, "--training.global_batch_size 64")
    found = written(bound(command), command, tp=2, pp=2, mbs=1, ac="full", schedule="Interleaved1F1B")
    assert (found[TP], found[PP], found["activation_checkpoint.mode"]) == (2, 2, "full")
    assert found["training.local_batch_size"] == 32  # 64 samples over 2 data-parallel ranks
    assert found["training.global_batch_size"] == 64
    assert found["parallelism.pipeline_parallel_schedule"] == "Interleaved1F1B"
    # A micro-batch of 1 is torchtitan's own default.
    assert "parallelism.pipeline_parallel_microbatch_size" not in found
    assert written(bound(command), command, pp=2, mbs=4)["parallelism.pipeline_parallel_microbatch_size"] == 4


def test_batches_in_tokens_are_written_in_tokens() -> None:
    preset = seen(TOKEN_SETTINGS)
    assert preset._space.job.global_batch == 64  # 8 samples of 2048 on each of 8 ranks
    found = written(preset, OF_PYTHON, pp=2, schedule="1F1B", mbs=2)
    assert found["training.num_tokens_per_microbatch_per_dp_rank"] == 2 * 2048
    assert found["training.num_tokens_per_train_step"] == 64 * 2048
    assert found["parallelism.num_pp_microbatches"] == 8
    assert found["training.disable_cuda_graphs"] is True


def test_tokens_that_are_no_whole_samples_are_refused() -> None:
    odd = {**TOKEN_SETTINGS, "training": {**TOKEN_SETTINGS["training"], "max_context_length": 3000}}
    with pytest.raises(UsageError):
        seen(odd)


def test_a_configuration_in_python_is_known_after_its_run_alone() -> None:
    preset = bound(OF_PYTHON)
    assert preset.own_point(OF_PYTHON) is None
    with pytest.raises(UsageError):
        preset.read_baseline("")
    with pytest.raises(UsageError):
        preset.subject(OF_PYTHON)
    preset.read_baseline(settings_log(SETTINGS))
    own = preset.own_point(OF_PYTHON)
    assert own is not None and (own["schedule"], own["ac"], own["mbs"]) == ("Interleaved1F1B", "selective", 8)
    assert preset.subject(OF_PYTHON).model.num_params == NUM_PARAMS
    assert preset.train_steps(OF_PYTHON) is None  # the run made those of a trial
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)


def test_lines_of_several_ranks_between_each_other_do_not_hide_the_settings() -> None:
    first = settings_log(SETTINGS).splitlines()
    other = [line.replace("[rank0]:", "[rank1]:") for line in first]
    mixed = "\n".join(line for pair in zip(first, other, strict=True) for line in pair)
    assert TitanRun.read(mixed).settings["training.seq_len"] == 2048


def test_the_shape_of_a_model_is_read_from_both_kinds_of_descriptions() -> None:
    by_parts = live_model(TitanRun.read(settings_log(SETTINGS)))
    arguments = f"Building llama3 debugmodelwith {json.dumps(ARGUMENTS, indent=2)}"
    by_arguments = live_model(TitanRun.read(log(arguments, SIZE.format(params=NUM_PARAMS))))
    assert by_parts == by_arguments and by_parts.num_params == NUM_PARAMS
    experts = live_model(TitanRun.read(settings_log(SETTINGS, experts=True)))
    assert (experts.num_experts, experts.top_k, experts.moe_ffn_hidden, experts.shared_ffn_hidden) == (8, 3, 256, 512)


def test_a_shape_that_has_not_the_parameters_of_the_model_is_not_taken() -> None:
    text = settings_log(SETTINGS).replace(f"{NUM_PARAMS:,}", "9,000,000")
    with pytest.raises(UsageError):
        live_model(TitanRun.read(text))


@pytest.mark.parametrize(
    ("point", "legal"),
    [
        ({"tp": 8, "pp": 2}, {"tp": 4, "pp": 2}),
        ({"tp": 16}, {"tp": 8}),  # 8 heads of keys and values
        ({"mbs": 4}, {"mbs": 4, "tp": 2}),
        ({"pp": 8, "mbs": 4}, {"pp": 8, "mbs": 2}),  # 1F1B with fewer micro-batches than stages
        ({"schedule": "Interleaved1F1B"}, {"schedule": "Interleaved1F1B", "pp": 2}),
        ({"shard": "ddp", "tp": 2}, {"shard": "ddp"}),
        ({"shard": "fsdp-kept", "pp": 2}, {"shard": "fsdp-kept"}),
        ({"cp": 3}, {"cp": 2}),
    ],
)
def test_what_torchtitan_would_refuse_is_not_tried(tmp_path: Path, point: Params, legal: Params) -> None:
    command = of_file(tmp_path, num_gpus=16 if point.get("tp") == 16 else 8)
    preset = bound(command)
    own = preset.own_point(command)
    assert own is not None
    assert preset.explain({**own, **point}) is not None
    assert preset.explain({**own, **legal}) is None


def test_sharding_is_written_as_degrees_and_policy(tmp_path: Path) -> None:
    command = of_file(tmp_path)
    assert written(bound(command), command, shard="ddp")[REPLICATE] == 8
    assert written(bound(command), command, shard="fsdp-kept")["parallelism.fsdp_reshard_after_forward"] == "never"
    explicit = of_file(tmp_path, f"--{SHARD} 8")
    found = written(bound(explicit), explicit, tp=2, mbs=1)
    assert (found[SHARD], found[TP]) == (4, 2)


def test_replicas_of_ones_own_stay(tmp_path: Path) -> None:
    command = of_file(tmp_path, f"--{REPLICATE} 2 --{SHARD} 4")
    preset = bound(command)
    assert "ddp" not in preset.get_search_space()["shard"].grid(9)
    own = preset.own_point(command)
    assert own is not None
    assert preset.explain({**own, "tp": 8, "mbs": 1}) is not None
    assert preset.explain({**own, "tp": 4, "mbs": 1}) is None
    assert written(preset, command, tp=2, mbs=1)[SHARD] == 2


def test_trials_make_few_steps_and_turn_off_what_is_on(tmp_path: Path) -> None:
    command = of_file(tmp_path)
    found = option_settings(bound(command, steps=12).trial_command(command).split())
    assert (found["training.steps"], found["metrics.log_freq"]) == (12, 1)
    assert (found["checkpoint.enable"], found["metrics.enable_tensorboard"]) == (False, False)
    # What a TOML does not have on, its release may not know.
    assert "validation.enable" not in found
    found = option_settings(bound(OF_PYTHON).trial_command(f"{OF_PYTHON} activation-checkpoint:none").split())
    assert found["validator.enable"] is False and found["debug.print_config"] is True


def test_experts_are_cut_where_the_model_has_any() -> None:
    assert seen(SETTINGS).get_search_space()["ep"].grid(9) == [1]
    preset = seen(SETTINGS, experts=True)
    found = written(preset, OF_PYTHON, ep=4)
    assert found["parallelism.expert_parallel_degree"] == 4 and found["training.disable_cuda_graphs"] is True


def test_a_pipeline_that_is_cut_by_hand_keeps_its_size(tmp_path: Path) -> None:
    option = "--parallelism.pipeline_parallel_layers_per_stage 4"
    space = bound(of_file(tmp_path, option)).get_search_space()
    assert len(space["pp"].grid(9)) == 1 and len(space["tp"].grid(9)) > 1


def test_context_parallelism_is_searched_for_long_sequences(tmp_path: Path) -> None:
    assert len(bound(of_file(tmp_path)).get_search_space()["cp"].grid(9)) == 1
    long = of_file(tmp_path, "--training.seq_len 131072")
    assert len(bound(long).get_search_space()["cp"].grid(9)) > 1


def test_the_number_of_gpus_is_that_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        bound(of_file(tmp_path), n_gpus=4)
    with pytest.raises(UsageError):
        bound(of_file(tmp_path, f"--{TP} 16"))
    command = of_file(tmp_path).replace("--nproc-per-node", "--nnodes 2 --nproc-per-node")
    preset = bound(command)
    assert preset.own_point(command) is not None and preset._space.job.num_gpus == 16
    resources = preset.resources(command)
    assert (resources.nodes, resources.gpus_per_node) == (2, 8)


def test_levers_fit_the_dialect_and_the_layout(tmp_path: Path) -> None:
    command = of_file(tmp_path).replace("--nproc-per-node", "--nnodes 2 --nproc-per-node")
    preset = bound(command, allow="fp8")
    own = preset.own_point(command)
    assert own is not None
    assert {lever.name for lever in preset.levers(command, own)} == {"compile", "hsdp", "fp8"}
    split = {lever.name: lever for lever in preset.levers(command, {**own, "tp": 2, "mbs": 1})}
    assert split["async_tp"].needs == {"compile"}
    tried = {**own, "compile": True, "hsdp": True, "fp8": True}
    found = option_settings(preset.apply_parameters(command, tried).split())
    assert found["compile.enable"] is True and found[REPLICATE] == 2
    assert found["model.converters"] == "quantize.linear.float8"
    python = seen(SETTINGS)
    own = python.own_point(OF_PYTHON)
    assert own is not None and {lever.name for lever in python.levers(OF_PYTHON, own)} == {"compile"}


def test_a_lever_that_the_command_has_is_not_offered(tmp_path: Path) -> None:
    command = of_file(tmp_path, "--compile.enable")
    preset = bound(command)
    own = preset.own_point(command)
    assert own is not None
    found = {lever.name: lever for lever in preset.levers(command, {**own, "tp": 2, "mbs": 1})}
    assert found.keys() == {"async_tp", "fp8"} and not found["async_tp"].needs
    assert found["fp8"].is_on_request


@pytest.mark.parametrize(
    ("options", "num_gpus", "framework"),
    [
        (("--compile.enable",), 8, "torchtitan"),
        (("--compile.enable",), 1, "torchtitan-compiled"),
        ((), 8, "torchtitan-eager"),
        ((), 1, "torchtitan-autocast"),
    ],
)
def test_what_runs_without_compilation_is_planned_by_what_was_measured_without(
    tmp_path: Path, options: tuple[str, ...], num_gpus: int, framework: str
) -> None:
    command = of_file(tmp_path, *options, num_gpus=num_gpus)
    assert bound(command, cluster=f"h100x{num_gpus}").subject(command).job.framework.name == framework


def test_the_model_of_a_flavour_is_that_of_the_catalog_and_another_is_seen_in_its_run(tmp_path: Path) -> None:
    command = of_file(tmp_path)
    assert bound(command).subject(command).model.name == "llama3-8b"
    small = of_file(tmp_path, "--model.flavor debugmodel")
    preset = bound(small)
    with pytest.raises(UsageError):
        preset.subject(small)
    arguments = f"Building llama3 debugmodelwith {json.dumps(ARGUMENTS, indent=2)}"
    preset.read_baseline(log(arguments, SIZE.format(params=NUM_PARAMS), *steps(1, 2)))
    assert preset.subject(small).model.num_layers == 6


def test_bad_arguments_are_refused() -> None:
    for arguments in ({"steps": 2}, {"mbs_max": 0}, {"levers": "none+x"}, {"allow": "compile"}):
        with pytest.raises(UsageError):
            TorchTitanPreset(**arguments)


def test_schedules_that_split_the_backward_pass_are_tried_on_request(tmp_path: Path) -> None:
    names = {"InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}
    command = of_file(tmp_path, "--training.global_batch_size 64")
    assert not names & {*bound(command).get_search_space()["schedule"].grid(9)}
    preset = bound(command, search="default+schedule")
    assert names < {*preset.get_search_space()["schedule"].grid(9)}
    found = written(preset, command, pp=4, mbs=1, ac="none", schedule="ZBVZeroBubble")
    assert found["parallelism.pipeline_parallel_schedule"] == "ZBVZeroBubble"
    point = {**preset._space.first_point, "pp": 4, "mbs": 1, "ac": "none", "schedule": "ZBVZeroBubble"}
    assert (preset.layout(point).schedule, preset.layout(point).vp) == ("zbv", 2)
    assert "compile" not in {lever.name for lever in preset.levers(command, point)}
    for broken in ({"ac": "full"}, {"ac": "selective"}, {"mbs": 8}):
        assert preset.explain({**point, **broken}) is not None


def test_a_compiled_job_tries_no_schedule_that_splits_the_backward_pass(tmp_path: Path) -> None:
    command = of_file(tmp_path, "--compile.enable --parallelism.pipeline_parallel_schedule ZBVZeroBubble")
    preset = bound(command, search="default+schedule")
    assert set(preset.get_search_space()["schedule"].grid(9)) == {"ZBVZeroBubble", "1F1B", "Interleaved1F1B"}
    point = {**preset._space.first_point, "pp": 2, "ac": "none"}
    assert preset.explain(point) is not None
    assert preset.explain({**point, "schedule": "Interleaved1F1B"}) is None
