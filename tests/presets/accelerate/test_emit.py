from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.layouts.specs import LLAMA_405B, MIXTRAL
from tests.mentions import mentions
from tests.presets.targets import target
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.emit import emit_accelerate
from zenith_tune.presets.emission import Target

# What Accelerate 1.15 reads; an unknown key at the top is an error there, one inside a part is ignored in silence.
TOP_KEYS = {
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "num_processes",
    "num_machines",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "same_network",
    "use_cpu",
    "megatron_lm_config",
    "deepspeed_config",
    "fsdp_config",
}
MEGATRON_KEYS = {
    f"megatron_lm_{key}"
    for key in [
        "tp_degree",
        "pp_degree",
        "num_micro_batches",
        "sequence_parallelism",
        "recompute_activations",
        "use_distributed_optimizer",
        "gradient_clipping",
        "use_custom_fsdp",
        "no_load_optim",
        "eod_mask_loss",
        "no_save_optim",
        "optimizer_cpu_offload",
        "overlap_cpu_optimizer_d2h_h2d",
        "use_precision_aware_optimizer",
        "decoder_last_pipeline_num_layers",
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "attention_backend",
        "expert_model_parallel_size",
        "context_parallel_size",
        "attention_dropout",
        "hidden_dropout",
        "attention_softmax_in_fp32",
        "expert_tensor_parallel_size",
        "calculate_per_token_loss",
        "use_rotary_position_embeddings",
    ]
}
DEEPSPEED_KEYS = {"zero_stage", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag"}
DEEPSPEED_KEYS |= {"zero3_save_16bit_model"}
FSDP_KEYS = {
    f"fsdp_{key}"
    for key in ("version", "reshard_after_forward", "auto_wrap_policy", "state_dict_type", "activation_checkpointing")
}


def settings(at: Target) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(emit_accelerate(at).text)
    assert loaded.keys() <= TOP_KEYS
    return loaded


def test_a_megatron_layout_has_only_keys_that_the_plugin_reads() -> None:
    at = target(tp=8, pp=4, zero=1, sequence_parallel=True, recompute="full/block", recompute_layers=3)
    config = settings(at)
    part = config["megatron_lm_config"]
    assert config["distributed_type"] == "MEGATRON_LM"
    assert part.keys() <= MEGATRON_KEYS
    assert (part["megatron_lm_tp_degree"], part["megatron_lm_pp_degree"]) == (8, 4)
    assert part["megatron_lm_num_micro_batches"] == 256
    assert part["megatron_lm_recompute_num_layers"] == 3
    assert part["megatron_lm_sequence_parallelism"] is True


def test_the_context_size_is_always_written_because_its_default_is_2() -> None:
    part = settings(target())["megatron_lm_config"]
    assert part["megatron_lm_context_parallel_size"] == 1


def test_a_run_without_recomputation_recomputes_blocks_of_no_layer() -> None:
    part = settings(target())["megatron_lm_config"]
    kind = [part[f"megatron_lm_recompute_{name}"] for name in ("granularity", "method", "num_layers")]
    assert kind == ["full", "block", 0], "its default recomputes all layers"
    assert "megatron_lm_attention_backend" not in part, "the plugin takes a switch, and fails on a name"


def test_the_batch_that_accelerate_works_out_is_the_one_planned() -> None:
    at = target(tp=4, pp=2, micro_batch=2)
    part = settings(at)["megatron_lm_config"]
    dp_degree = 64 // (part["megatron_lm_tp_degree"] * part["megatron_lm_pp_degree"])
    assert dp_degree * at.layout.micro_batch * part["megatron_lm_num_micro_batches"] == 512
    assert mentions(emit_accelerate(at).notes[0], "dataloader's", 2)


@pytest.mark.parametrize(
    ("at", "part"),
    [
        (target(pp=4, vp=5), "virtual stages"),
        (target(cp=2), "context parallelism"),
        (target(recompute="selective"), "selective recomputation"),
        (target(model=LLAMA_405B, cluster="h100x2048", pp=16), "uneven"),
        (target(pp=32), "uneven"),
        (target(zero=3), "sharded"),
        (target(precision="fp8"), "fp8 .*MEGATRON_LM"),
        (target(precision="mxfp8", framework="fsdp"), "mxfp8"),
    ],
)
def test_what_accelerate_has_no_key_for_is_refused(at: Target, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        emit_accelerate(at)


@pytest.mark.parametrize(
    ("framework", "kind", "part", "keys"),
    [("deepspeed", "DEEPSPEED", "deepspeed_config", DEEPSPEED_KEYS), ("fsdp", "FSDP", "fsdp_config", FSDP_KEYS)],
)
def test_the_other_backends_have_files_too(framework: str, kind: str, part: str, keys: set[str]) -> None:
    config = settings(target(framework=framework, zero=3))
    assert config["distributed_type"] == kind
    assert config[part].keys() <= keys
    with pytest.raises(UsageError, match="tp above 1"):
        emit_accelerate(target(framework=framework, tp=2))


def test_a_mixture_says_its_expert_sizes() -> None:
    part = settings(target(model=MIXTRAL, tp=2, ep=8, sequence_parallel=True))
    assert part["megatron_lm_config"]["megatron_lm_expert_model_parallel_size"] == 8


def test_several_machines_are_named() -> None:
    config = settings(target())
    assert (config["num_machines"], config["num_processes"]) == (8, 64)
    assert "main_process_ip" in config


def test_fsdp_that_shards_nothing_is_written_as_plain_data_parallelism() -> None:
    config = settings(target(framework="fsdp", zero=0))
    assert config["distributed_type"] == "MULTI_GPU" and "fsdp_config" not in config
    assert any("FSDP" in note for note in emit_accelerate(target(framework="fsdp")).notes)
    assert settings(target(framework="fsdp", zero=2))["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert settings(target(framework="fsdp", cluster="h100x1"))["distributed_type"] == "NO"


@pytest.mark.parametrize("framework", ["fsdp", "hf-accelerate"])
def test_accumulation_steps_that_have_no_key_are_said_in_the_file(framework: str) -> None:
    at = target(framework=framework, zero=0, micro_batch=2)
    for text in (emit_accelerate(at).text, emit_accelerate(at).notes[0]):
        assert "gradient_accumulation_steps=4): 64 x 2 x 4 = batch 512" in text


def test_checkpointing_that_the_file_cannot_switch_on_is_noted() -> None:
    for framework in ("deepspeed", "hf-accelerate"):
        at = target(framework=framework, recompute="full/uniform", recompute_layers=1)
        assert any("gradient checkpointing" in note for note in emit_accelerate(at).notes)


def test_a_model_that_the_megatron_plugin_cannot_build_is_noted() -> None:
    notes = emit_accelerate(target(model=MIXTRAL)).notes
    assert any(mentions(note, "glm4_moe", "mixtral-8x7b", "provider") for note in notes)
    assert not any("provider" in note for note in emit_accelerate(target()).notes)


def test_eight_bits_are_written_where_a_backend_takes_them() -> None:
    at = target(framework="fsdp", zero=3, precision="fp8")
    assert settings(at)["mixed_precision"] == "fp8"
    assert any("Transformer Engine" in note for note in emit_accelerate(at).notes)
