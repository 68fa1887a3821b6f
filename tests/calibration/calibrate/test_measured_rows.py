from __future__ import annotations

from pathlib import Path

import pytest

from tests.calibration.calibrate.rows import GPT3, LLAMA, read
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_tune.calibrate.time_fit import unusable
from zenith_tune.layouts.layout_batch import RECOMPUTE_BLOCK, RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM
from zenith_tune.units import GIB, MIB


def test_a_row_states_its_model_layout_and_speed(tmp_path: Path) -> None:
    (run,) = read(tmp_path, LLAMA | {"step_time_s": "6.5"})
    assert run.model is not None and run.model.num_params == pytest.approx(8.03e9, rel=0.001)
    assert (run.gpu, run.num_gpus, run.seq_len, run.precision) == ("h100", 8, 8192, "bf16")
    assert run.layout["dp"] == 4 and run.step_s == 6.5


def test_a_step_time_follows_from_tokens_per_second(tmp_path: Path) -> None:
    (run,) = read(tmp_path, LLAMA | {"tokens_per_s_per_gpu": "10000"})
    assert run.step_s == pytest.approx(64 * 8192 / 8 / 10_000)


def test_a_step_time_follows_from_the_stated_utilization(tmp_path: Path) -> None:
    # Operations of a token by hand: 2 per weight but the embedding's, 4*s*h*L for the scores, three passes.
    weights = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336) + 128256 * 4096
    flops = 3 * (2 * weights + 4 * 8192 * 4096 * 32) * 64 * 8192
    (run,) = read(tmp_path, LLAMA | {"mfu_pct": "40"})
    assert run.step_s == pytest.approx(flops / (0.4 * 989.4e12 * 8), rel=0.002)


def test_the_rate_of_2021_counts_the_forward_pass_that_runs_again(tmp_path: Path) -> None:
    # Narayanan et al. 2021, eq. 3: 96*B*s*l*h^2*(1 + s/6h + V/16lh) operations a step with full recomputation.
    batch, s, layers, h, vocab = 1536, 2048, 96, 12288, 51200
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    stated = GPT3 | {"tflops_per_gpu": "140", "recompute": "full"}
    (again,) = read(tmp_path, stated | {"source_id": "megatron_sc21_table1"})
    (once,) = read(tmp_path, stated | {"source_id": "korthikanti2022_t5"})
    assert again.step_s == pytest.approx(flops / (140e12 * 1024), rel=0.005)
    assert once.step_s == pytest.approx(0.75 * (again.step_s or 0))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"mem_per_gpu_gib": "40"}, 40 * GIB),
        ({"mem_per_gpu_gib": "40", "notes": "memory GB"}, 40e9),
        ({"mem_per_gpu_gib": "40", "notes": "memory GB", "source_id": "ultrascale_playbook"}, 40 * GIB),
        ({"max_allocated_mib": "1000", "mem_per_gpu_gib": "40"}, 1000 * MIB),
        ({"mem_per_gpu_gib": "-3"}, None),
    ],
)
def test_memory_is_read_in_the_unit_that_the_source_uses(
    tmp_path: Path, row: dict[str, str], expected: float | None
) -> None:
    (run,) = read(tmp_path, LLAMA | row)
    assert run.memory_bytes == expected


@pytest.mark.parametrize("word", ["FLAG", "CHECK", "INCONSISTENT", "PROXY", "STALE?"])
def test_a_row_that_its_source_doubts_is_not_used(tmp_path: Path, word: str) -> None:
    (run,) = read(tmp_path, LLAMA | {"step_time_s": "6.5", "notes": f"{word}: tp guessed"})
    assert run.flags == (word,) and word in (unusable(run) or "")


@pytest.mark.parametrize(
    "row",
    [
        {"model": "Llama3-70B SFT"},
        {"notes": "SFT Performance; mock data"},
        {"notes": "Fine-Tuning (LoRA) Performance; LBS=2"},
        {"notes": "item peft/H100; mean of last 10 steps"},
        {"notes": "full-parameter SFT, 8K context"},
    ],
)
def test_a_run_of_fine_tuning_is_not_read_as_pretraining(tmp_path: Path, row: dict[str, str]) -> None:
    (run,) = read(tmp_path, LLAMA | {"step_time_s": "6.5"} | row)
    assert unusable(run) == "fine-tuning"


def test_latent_attention_is_not_taken_for_an_adapter(tmp_path: Path) -> None:
    (run,) = read(
        tmp_path, LLAMA | {"step_time_s": "6.5", "notes": "q_lora=1536; kv_lora=512; qk_nope=128; qk_rope=64"}
    )
    assert unusable(run) is None


@pytest.mark.parametrize(
    ("gpu", "memory", "name"),
    [
        ("H100", "80", "h100"),
        ("H100", "96", "h100-96"),
        ("H100", "", "h100"),
        ("A100", "40", "a100-40"),
        ("A100", "", "a100-80"),
        ("V100", "32", "v100-32"),
        ("H200", "141", "h200"),
        ("B200", "192", "b200"),
        ("TPU", "16", "tpu"),
    ],
)
def test_a_gpu_is_told_by_its_memory_where_there_are_several(tmp_path: Path, gpu: str, memory: str, name: str) -> None:
    (run,) = read(tmp_path, LLAMA | {"gpu": gpu, "gpu_mem_gib": memory})
    assert run.gpu == name


@pytest.mark.parametrize(
    ("row", "release"),
    [
        ({"framework": "Megatron-Bridge (NeMo container 26.06.01)"}, 2026 + 5 / 12),
        ({"framework": "Megatron-Core v0.16", "source_url": "https://arxiv.org/abs/2603.07685"}, 2026 + 2 / 12),
        ({"framework": "NeMo 25.02", "source_url": "https://arxiv.org/abs/2603.07685"}, 2025 + 1 / 12),
        ({"framework": "Megatron-LM"}, 2025.5),
    ],
)
def test_a_release_is_the_month_of_the_container_or_of_the_paper(
    tmp_path: Path, row: dict[str, str], release: float
) -> None:
    (run,) = read(tmp_path, LLAMA | row)
    assert run.release == pytest.approx(release)


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ({"notes": "schedule 1F1B"}, {"vp": 1, "mbs": 4, "zero": 1}),
        ({"notes": "schedule Interleaved 1F1B"}, {"vp": 2, "mbs": 2, "zero": 1}),
        ({"mbs": "1"}, {"vp": 1, "mbs": 1, "zero": 1}),
        ({"pp": "1", "mbs": "1"}, {"mbs": 1, "zero": 3}),
    ],
)
def test_a_pipeline_of_torchtitan_has_its_defaults_where_a_row_is_silent(
    tmp_path: Path, row: dict[str, str], layout: dict[str, int]
) -> None:
    titan = {"framework": "torchtitan", "n_gpus": "512", "tp": "8", "pp": "8", "mbs": "", "gbs": "256"}
    (run,) = read(tmp_path, LLAMA | titan | {"zero_stage_or_fsdp": "FSDP2"} | row)
    assert {name: run.layout[name] for name in layout} == layout


@pytest.mark.parametrize(
    ("row", "framework"),
    [
        ({"framework": "Megatron-LM"}, "megatron"),
        ({"framework": "NeMo 25.02"}, "megatron"),
        ({"framework": "Megatron-LM", "year": "2021"}, "megatron-legacy"),
        ({"framework": "Megatron-DeepSpeed (BigScience)"}, "megatron-deepspeed"),
        ({"framework": "DeepSpeed 0.7"}, "deepspeed"),
        ({"framework": "nanotron"}, "nanotron"),
        ({"framework": "Composer/llm-foundry"}, "llm-foundry"),
        ({"framework": "torchtitan", "notes": "FSDP + torch.compile"}, "fsdp"),
        ({"framework": "torchtitan", "compile": "1"}, "fsdp"),
        ({"framework": "torchtitan", "precision": "float8"}, "fsdp"),
        ({"framework": "torchtitan"}, "torchtitan-eager"),
        ({"framework": "torchtitan", "n_gpus": "1"}, "torchtitan-autocast"),
        ({"framework": "torchtitan", "n_gpus": "1", "compile": "1"}, "torchtitan-compiled"),
        ({"framework": "transformers + accelerate"}, "hf-accelerate"),
        ({"framework": "Megatron-LM --transformer-impl local"}, "megatron-local"),
        ({"framework": "Megatron Core", "source_id": "mcore_ci_golden"}, "megatron-ci"),
        ({"framework": "MegaScale", "source_id": "megascale_t2"}, "megascale"),
        ({"framework": "Megatron-LM", "source_id": "megascale_t2"}, "megatron-legacy"),
    ],
)
def test_what_a_source_calls_its_framework_is_recognised(tmp_path: Path, row: dict[str, str], framework: str) -> None:
    (run,) = read(tmp_path, LLAMA | row)
    assert run.framework == framework


@pytest.mark.parametrize(
    ("row", "recompute", "layers"),
    [
        ({}, RECOMPUTE_NONE, 0),
        ({"recompute": "selective"}, RECOMPUTE_SELECTIVE, 0),
        ({"recompute": "full"}, RECOMPUTE_UNIFORM, 1),
        ({"recompute": "full/block", "recompute_num_layers": "3"}, RECOMPUTE_BLOCK, 3),
        ({"gradient_checkpointing": "1"}, RECOMPUTE_UNIFORM, 1),
    ],
)
def test_recomputation_is_read_however_it_is_spelled(
    tmp_path: Path, row: dict[str, str], recompute: int, layers: int
) -> None:
    (run,) = read(tmp_path, LLAMA | row)
    assert (run.layout["recompute"], run.layout["recompute_layers"]) == (recompute, layers)


@pytest.mark.parametrize(
    ("text", "zero"), [("", 1), ("DDP", 0), ("ZeRO-2", 2), ("FSDP", 3), ("FSDP SHARD_GRAD_OP", 2), ("ZeRO-0", 0)]
)
def test_the_stage_of_sharding_is_read(tmp_path: Path, text: str, zero: int) -> None:
    (run,) = read(tmp_path, LLAMA | {"zero_stage_or_fsdp": text})
    assert run.layout["zero"] == zero


def test_before_2023_there_was_neither_flash_attention_nor_sequence_parallelism(tmp_path: Path) -> None:
    old, stated, new = read(tmp_path, GPT3, GPT3 | {"seq_parallel": "yes"}, LLAMA)
    assert not old.layout["flash_attention"] and not old.layout["sequence_parallel"]
    assert stated.layout["sequence_parallel"]
    assert new.layout["flash_attention"] and new.layout["sequence_parallel"]


def test_a_mixture_of_experts_is_read_from_columns_and_notes(tmp_path: Path) -> None:
    notes = "dense_ffn=18432; first_k_dense=3; n_shared_experts=1; q_lora=1536; kv_lora=512; qk_nope=128; qk_rope=64"
    shape = {"num_layers": "61", "hidden": "7168", "ffn_hidden": "2048", "num_heads": "128", "vocab": "129280"}
    row = LLAMA | shape | {"model": "DeepSeek-V3", "n_experts": "256", "top_k": "8", "notes": f"{notes}; v_head=128"}
    (run,) = read(tmp_path, row)
    assert run.model is not None
    assert run.model.num_params == pytest.approx(671e9, rel=0.005)
    assert run.model.num_active_params == pytest.approx(37.5e9, rel=0.02)


def test_every_row_of_a_folder_is_read_but_for_tables_of_models(tmp_path: Path) -> None:
    (tmp_path / "published").mkdir()
    read(tmp_path, LLAMA, LLAMA)
    (tmp_path / "runs.csv").rename(tmp_path / "published" / "a.csv")
    read(tmp_path, LLAMA)
    (tmp_path / "_models.csv").write_text((tmp_path / "runs.csv").read_text())
    assert len(read_measured(tmp_path)) == 3
