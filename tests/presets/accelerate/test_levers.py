"""Which levers a point of Accelerate's backends is offered, and what they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.presets.accelerate.jobs import DEEPSPEED, FSDP, bound, command, point, write
from zenith_tune.errors import UnknownNameError
from zenith_tune.presets.accelerate.emit import DS_FILE, DS_PATH
from zenith_tune.presets.accelerate.levers import FSDP_LEVERS
from zenith_tune.presets.accelerate.preset import AcceleratePreset
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.shared.accelerate_launch import FILE_NAME
from zenith_tune.presets.shared.accelerate_settings import SECTION_OF
from zenith_tune.study.parameters import Value

KNOWN: dict[str, Any] = {"model": "llama-3-8b", "seq": 2048, "cluster": "h100x16"}


def job(folder: Path, kind: str, section: str | None = None, options: str = "", **args: Any) -> AcceleratePreset:
    return bound(command(write(folder, kind, section), options=options), **args)


def offered(preset: AcceleratePreset, **values: Value) -> dict[str, Lever]:
    return {lever.label: lever for lever in preset.levers("", point(preset, **values))}


def test_declarations_are_whole() -> None:
    names = {lever.name for lever in FSDP_LEVERS}
    assert len(names) == len(FSDP_LEVERS)
    for lever in FSDP_LEVERS:
        assert lever.source and lever.sets.keys() <= SECTION_OF.keys(), "Accelerate reads every key"
        assert lever.excludes | lever.needs.keys() <= names and (lever.saves or lever.memory)


def test_sharding_stays_inside_machines_where_there_are_several(tmp_path: Path) -> None:
    assert "hybrid_shard" in offered(job(tmp_path, "FSDP"))
    assert "hybrid_shard" not in offered(job(tmp_path, "FSDP", options="--num_machines 1"))
    own = f"{FSDP}parallelism_config:\n  parallelism_config_dp_shard_size: 16\n"
    assert "hybrid_shard" not in offered(job(tmp_path, "FSDP", own))
    planned = offered(job(tmp_path, "FSDP", **KNOWN))["hybrid_shard"]
    assert 0 < planned.memory < 1, "states of 8 in place of 16 GPUs, beside the activations"


def test_what_frees_memory_saves_no_time(tmp_path: Path) -> None:
    recomputed = offered(job(tmp_path, "FSDP"), checkpointing=True)
    assert recomputed["checkpointing_offload"].is_for_memory and recomputed["offload"].is_for_memory
    assert "checkpointing_offload" not in offered(job(tmp_path, "FSDP"), checkpointing=False)
    assert "offload" not in offered(job(tmp_path, "FSDP", search="default+offload")), "it is searched"


def test_a_compiler_of_the_own_file_is_left_alone(tmp_path: Path) -> None:
    assert "compile" in offered(job(tmp_path, "FSDP"))
    assert "compile" not in offered(job(tmp_path, "FSDP", f"{FSDP}dynamo_config:\n  dynamo_backend: EAGER\n"))
    assert "compile" in offered(job(tmp_path, "FSDP", f"{FSDP}dynamo_config:\n  dynamo_backend: 'NO'\n"))


def test_levers_of_fsdp_stand_in_the_file_and_are_asked_of_the_hook(tmp_path: Path) -> None:
    preset = job(tmp_path, "FSDP")
    values = {**point(preset), "hybrid_shard": True, "compile": True}
    written = yaml.safe_load(preset.files(values)[FILE_NAME])
    assert written["parallelism_config"]["parallelism_config_dp_replicate_size"] == 2
    assert written["dynamo_config"]["dynamo_backend"] == "INDUCTOR"
    asked = preset.asked(values).settings
    assert (asked["dp_replicate_size"], asked["dp_shard_size"], asked["dynamo_backend"]) == (2, 8, "INDUCTOR")
    assert "hybrid_shard" in preset.label(values)


def test_levers_of_deepspeed_come_in_a_json_that_is_else_accelerates_own(tmp_path: Path) -> None:
    preset = job(tmp_path, "DEEPSPEED")
    plain = point(preset)
    assert DS_FILE not in preset.files(plain) and "overlap_comm" in offered(preset)
    values = {**plain, "overlap_comm": True}
    files = preset.files(values)
    config = json.loads(files[DS_FILE])
    assert config["zero_optimization"]["overlap_comm"] is True and config["zero_optimization"]["stage"] == 2
    assert config["train_batch_size"] == "auto" and config["gradient_accumulation_steps"] == 4
    assert config["gradient_clipping"] == 1.0 and "bf16" not in config
    assert "zero_stage" not in yaml.safe_load(files[FILE_NAME])["deepspeed_config"]
    text = preset.apply_parameters(command(tmp_path / "own.yaml"), values)
    assert f"--deepspeed_config_file {DS_PATH}" in text and "--mixed_precision bf16" in text
    assert preset.asked(values).settings["zero_optimization.overlap_comm"] is True


def test_an_own_json_keeps_what_it_has(tmp_path: Path) -> None:
    own = tmp_path / "ds.json"
    own.write_text(json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "x": 1}))
    preset = job(tmp_path, "DEEPSPEED", f"deepspeed_config:\n  deepspeed_config_file: {own}\n")
    levers = offered(preset)
    assert "offload_ratio=0.5" in levers and "zero_hpz_partition_size=8" in levers
    config = json.loads(preset.files({**point(preset), "offload_ratio": 0.5})[DS_FILE])
    assert config["x"] == 1 and config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "ratio": 0.5}


def test_other_backends_have_none(tmp_path: Path) -> None:
    for kind in ("MULTI_GPU", "MEGATRON_LM"):
        assert not offered(job(tmp_path, kind))
    assert not offered(job(tmp_path, "FSDP", levers="none"))


def test_numerics_and_unknown_names_are_refused(tmp_path: Path) -> None:
    third = DEEPSPEED.replace("zero_stage: 2", "zero_stage: 3")
    assert offered(job(tmp_path, "DEEPSPEED", third))["zero_quantized_weights"].is_on_request
    allowed = job(tmp_path, "DEEPSPEED", third, allow="zero_quantized_weights")
    assert not offered(allowed)["zero_quantized_weights"].is_on_request
    for arguments in ({"allow": "compile"}, {"levers": "zero_quantized_weights"}, {"levers": "overlap"}):
        with pytest.raises(UnknownNameError):
            AcceleratePreset(**arguments)  # type: ignore[arg-type]


def test_a_note_names_what_may_be_tried(tmp_path: Path) -> None:
    def noted(kind: str) -> str:
        return next((line for line in job(tmp_path, kind).notes("") if "optional settings" in line), "")

    assert "hybrid_shard" in noted("FSDP") and "overlap_comm" not in noted("FSDP")
    assert "stage3_prefetch_bucket_size" in noted("DEEPSPEED") and not noted("MULTI_GPU")
