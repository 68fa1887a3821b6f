"""Recipes of Megatron-Bridge, by what a run prints (main of 2026-08-22).

The configuration is what `print_yaml` of megatron/training/config/container.py prints for recipe_runner.py; the lines
of iterations and memory are those of training/utils/train_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.megatron_bridge.config import RecipeConfig
from zenith_tune.presets.megatron_bridge.preset import MegatronBridgePreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

RECIPE = (
    "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config --mode pretrain"
    " --dataset mock -tp 2"
)
MODEL: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "kv_channels": 128,
    "ffn_hidden_size": 14336,
    "vocab_size": 128256,
    "seq_length": 8192,
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "share_embeddings_and_output_weights": False,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "apply_rope_fusion": False,
    "transformer_impl": "transformer_engine",
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "sequence_parallel": True,
    "expert_model_parallel_size": 1,
    "pipeline_model_parallel_layout": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "num_moe_experts": None,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
    "tp_comm_overlap": False,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "expert_tensor_parallel_size": None,
    "cross_entropy_loss_fusion": False,
    "cross_entropy_fusion_impl": "native",
    "params_dtype": {"_args_": ["torch.bfloat16"], "_call_": False, "_target_": "megatron.bridge.str_to_dtype"},
}
DDP = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
CONFIG: dict[str, Any] = {
    "_target_": "megatron.bridge.training.config.ConfigContainer",
    "checkpoint": {"load": "/checkpoints", "save": "/checkpoints", "save_interval": 500},
    "comm_overlap": None,
    "ddp": {**DDP, "bucket_size": None, "grad_reduce_in_fp32": True},
    "logger": {"log_interval": 10, "save_config_filepath": None},
    "mixed_precision": "bf16_mixed",
    "model": MODEL,
    "optimizer": {"optimizer": "adam", "use_precision_aware_optimizer": False},
    "train": {"train_iters": 100, "micro_batch_size": 1, "global_batch_size": 512, "manual_gc": True},
}
POINT: Params = {"tp": 1, "pp": 2, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 2, "recompute": "none"}


def changed(**sections: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration with other values in some sections."""
    more = {name: {**(CONFIG.get(name) or {}), **values} if values else None for name, values in sections.items()}
    return {**CONFIG, **more}


EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 2048, "moe_layer_freq": [1] * 32}
ROUTING = {"moe_router_force_load_balancing": False, "moe_token_dispatcher_type": "alltoall"}
WITH_EXPERTS = changed(model={**EXPERTS, **ROUTING})


def log(config: Mapping[str, Any], seconds: float = 2.0) -> str:
    """Return what a run prints: its configuration, memory, and a line for each iteration."""
    lines = [
        f" [2026-08-22 07:30:{at:02d}] iteration {at:8d}/     100 | consumed samples: {512 * at:12d} |"
        f" elapsed time per iteration (ms): {1000 * seconds:.1f} | learning rate: 1.0E-04 | global batch size:   512 |"
        f" lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 |"
        f" number of nan iterations:   0 |\n"
        for at in range(1, 9)
    ]
    peak = "mem-max-allocated-gigabytes: 50.5 | mem-max-reserved-gigabytes: 60.25"
    memory = (
        f"[Rank 0] (after 2 iterations) memory (GB) | mem-reserved-gigabytes: 60.0 | {peak} | mem-alloc-retires: 0\n"
    )
    dump = yaml.safe_dump(dict(config), default_flow_style=False)
    return f"INFO:recipe_runner:Final configuration:\n{dump}\n> initializing\n{lines[0]}{memory}\n{''.join(lines[1:])}"


def live(command: str = RECIPE, config: Mapping[str, Any] = CONFIG, **arguments: Any) -> MegatronBridgePreset:
    preset = MegatronBridgePreset(cluster="h100x8", **arguments)
    preset.bind(command)
    preset.read_baseline(log(config))
    return preset


class TestContract(PresetContract):
    def make(self) -> MegatronBridgePreset:
        return live(self.command())

    def command(self) -> str:
        return RECIPE


class TestExpertsContract(TestContract):
    def make(self) -> MegatronBridgePreset:
        return live(self.command(), WITH_EXPERTS)


def test_recipes_are_recognised_also_in_a_script(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f'{RECIPE} "$@"\n')
    for command in (
        RECIPE,
        f"bash {script}",
        f"python -m torch.distributed.run --nproc_per_node 2 {RECIPE.split()[2]}",
    ):
        assert recognised_preset(command) == "megatron-bridge"
    script.write_text(RECIPE)
    with pytest.raises(UsageError):
        MegatronBridgePreset().bind(f"bash {script}")


def test_what_a_recipe_sets_is_read_from_its_run() -> None:
    preset = MegatronBridgePreset(cluster="h100x8")
    preset.bind(RECIPE)
    assert preset.own_point(RECIPE) is None and not isinstance(preset.get_recommended_strategy(), GuidedStrategy)
    assert preset.read_baseline(log(CONFIG))
    subject = preset.subject(RECIPE)
    assert (subject.model.name, subject.job.seq_len, subject.job.precision) == ("llama3-8b", 8192, "bf16")
    own = preset.own_point(RECIPE)
    assert own is not None and (own["tp"], own["pp"], own["mbs"]) == (2, 1, 1)
    layout = preset.layout(own)
    assert (layout.global_batch, layout.zero, layout.sequence_parallel) == (512, 1, True)
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)


def test_a_saved_configuration_is_known_before_any_run(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    command = f"{RECIPE} logger.save_config_filepath={path}"
    preset = MegatronBridgePreset(cluster="h100x8")
    preset.bind(command)
    assert preset.read_baseline("") == [] and preset.own_point(command) is not None
    preset.bind(RECIPE)
    with pytest.raises(UsageError):
        preset.read_baseline("")


def test_a_point_is_overrides_and_the_batch_is_pinned() -> None:
    preset = live()
    own = preset.own_point(RECIPE)
    assert own is not None
    assert preset.apply_parameters(RECIPE, own) == f"{RECIPE} train.global_batch_size=512"
    assert ParsedCommand.of(preset.apply_parameters(RECIPE, POINT)).overrides == {
        "model.tensor_model_parallel_size": "1",
        "model.pipeline_model_parallel_size": "2",
        "train.micro_batch_size": "2",
        "train.global_batch_size": "512",
        "model.sequence_parallel": "false",
    }
    given = f"{RECIPE} model.pipeline_model_parallel_size=4"
    assert ParsedCommand.of(preset.apply_parameters(given, own)).overrides["model.pipeline_model_parallel_size"] == "1"


def test_recomputation_and_splits_are_written_in_the_grammar_of_overrides() -> None:
    preset = live(config=changed(model={"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}))
    full = ParsedCommand.of(preset.apply_parameters(RECIPE, {**POINT, "recompute": "full/uniform1"})).overrides
    assert full["model.recompute_granularity"] == "full" and full["model.recompute_num_layers"] == "1"
    off = ParsedCommand.of(preset.apply_parameters(RECIPE, POINT)).overrides
    assert off["model.recompute_granularity"] == "null"
    config = RecipeConfig.of(yaml.safe_dump(CONFIG))
    assert config is not None
    assert config.overrides({"--pipeline-model-parallel-layout": "Et|tL", "--recompute-modules": "mlp"}) == {
        "model.pipeline_model_parallel_layout": '"Et|tL"',
        "model.recompute_modules": "[mlp]",
    }


def test_a_layout_of_the_recipe_itself_stays() -> None:
    stages = [["embedding", *["decoder"] * 15], [*["decoder"] * 17, "loss"]]
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "sequence_parallel": False}
    preset = live(config=changed(model={**sizes, "pipeline_model_parallel_layout": stages}))
    own = preset.own_point(RECIPE)
    assert own is not None and (own["pp"], own["vp"]) == (2, 1)
    assert preset.apply_parameters(RECIPE, own) == f"{RECIPE} train.global_batch_size=512"
    other = ParsedCommand.of(preset.apply_parameters(RECIPE, {**POINT, "pp": 4})).overrides
    assert other["model.pipeline_model_parallel_layout"] == "null"


def test_fields_one_level_deeper_are_set_there() -> None:
    outer = {name: MODEL[name] for name in ("vocab_size", "seq_length", "share_embeddings_and_output_weights")}
    nested = {**outer, "transformer": {name: value for name, value in MODEL.items() if name not in outer}}
    preset = live(config={**CONFIG, "model": nested})
    assert preset.subject(RECIPE).model.name == "llama3-8b"
    assert "model.transformer.tensor_model_parallel_size=1" in preset.apply_parameters(RECIPE, POINT).split()


def test_runs_are_measured_line_by_line_and_without_checkpoints() -> None:
    measured = ParsedCommand.of(live().trial_command(RECIPE)).overrides
    assert measured == {"logger.log_interval": "1", "checkpoint.save": "null", "checkpoint.load": "null"}


def test_routing_is_balanced_where_the_users_own_command_can_be_measured_so_too(tmp_path: Path) -> None:
    assert "balancing" not in live(config=WITH_EXPERTS).trial_command(RECIPE)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(WITH_EXPERTS))
    known = live(f"{RECIPE} logger.save_config_filepath={path}", WITH_EXPERTS)
    assert "model.moe_router_force_load_balancing=true" in known.trial_command(RECIPE)


def test_levers_are_those_that_the_configuration_has_a_place_for() -> None:
    preset = live()
    names = {lever.name for lever in preset.levers(RECIPE, POINT)}
    assert {"loss_fusion", "rope_fusion", "precision_aware_optimizer"} <= names
    assert not names & {"fp8", "fsdp", "attention", "manual_gc", "cuda_graphs"}
    text = preset.apply_parameters(RECIPE, {**POINT, "rope_fusion": True, "loss_fusion": "native"})
    written = ParsedCommand.of(text).overrides
    assert written["model.apply_rope_fusion"] == "true" and written["model.cross_entropy_loss_fusion"] == "true"


def test_adapters_are_searched_without_a_plan() -> None:
    preset = live(config={**CONFIG, "peft": {"dim": 32, "target_modules": ["linear_qkv"]}})
    assert preset.own_point(RECIPE) is not None and not isinstance(preset.get_recommended_strategy(), GuidedStrategy)
    with pytest.raises(UsageError):
        preset.subject(RECIPE)


def test_the_distributed_optimizer_is_turned_off_in_both_sections() -> None:
    config = changed(optimizer={"use_distributed_optimizer": True})
    preset = live(config=config, search="default+zero")
    written = ParsedCommand.of(preset.apply_parameters(RECIPE, {**POINT, "zero": 0})).overrides
    assert written["ddp.use_distributed_optimizer"] == written["optimizer.use_distributed_optimizer"] == "false"
    assert written["ddp.overlap_param_gather"] == "false"


def test_a_section_that_decides_about_messages_is_left_alone() -> None:
    config = changed(comm_overlap={"tp_comm_overlap": True, "overlap_grad_reduce": None, "bucket_size": None})
    names = {lever.name for lever in live(config=config).levers(RECIPE, {**POINT, "tp": 2, "pp": 1})}
    assert not names & {"tp_overlap", "overlap", "bucket_size"}


def test_the_lines_that_its_own_code_writes_are_read() -> None:
    """The file was written by training_log of Megatron-Bridge (067f987d, 2026-08-22), called with these times."""
    text = Path(__file__).with_name("iterations.txt").read_text()
    measured = live().evaluator().measure(f"{log(CONFIG).partition('> initializing')[0]}\n{text}", {"parameters": {}})
    assert measured.unit == "tokens/s" and measured.value == pytest.approx(512 * 8192 / 12.015, rel=0.002)
    assert measured.peak_memory_bytes == 66_035_000_000


def test_a_run_is_measured_in_tokens_and_must_be_configured_as_asked() -> None:
    preset = live()
    evaluator = preset.evaluator()
    measured = evaluator.measure(log(CONFIG), {"parameters": {}})
    assert (measured.unit, measured.value) == ("tokens/s", 512 * 8192 / 2.0)
    assert measured.peak_memory_bytes == 60_250_000_000
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "sequence_parallel": False}
    arrived = changed(model=sizes, train={"micro_batch_size": 2})
    assert evaluator.measure(log(arrived), {"parameters": POINT}).value == measured.value
    with pytest.raises(OtherSettingsError):
        evaluator.measure(log(CONFIG), {"parameters": POINT})
