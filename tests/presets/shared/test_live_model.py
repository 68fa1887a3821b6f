"""What the hook saw of the model of the user's own command, and what the preset plans with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.presets.accelerate.jobs import bound, choices, command, write
from tests.presets.accelerate.logs import prepared, steps
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.hooks.process import PREFIX
from zenith_tune.presets.accelerate.preset import AcceleratePreset
from zenith_tune.presets.shared.live_model import LiveModel
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.strategies.guided.strategy import GuidedStrategy

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
NUM_PARAMS = 8_030_261_248
"""Of Llama 3 8B, which LLAMA is the config of."""


def model(**values: Any) -> dict[str, Any]:
    """Return the hook's line on a model."""
    event = {"event": "model", "class": "LlamaForCausalLM", "config": LLAMA, "dtype": "float32", "models": 1}
    counts = {"parameters": NUM_PARAMS, "trained": NUM_PARAMS}
    return {**event, **counts, "input": {"name": "input_ids", "shape": [2, 512]}, **values}


def log(*events: dict[str, Any], seconds: tuple[float, ...] = (2.0, 0.5, 0.5, 0.5), **values: Any) -> str:
    """Return what the sixteen ranks of the job in `jobs` write."""
    lines = [prepared(f"host:{rank}", **{"processes": 16, "precision": "bf16", **values}) for rank in range(16)]
    reported = [PREFIX + json.dumps(event) + "\n" for event in events]
    return "".join([*lines, *reported]) + steps(seconds, samples=32, sequence=512)


def plain(folder: Path, more: str = "--batch_size 2", **args: Any) -> AcceleratePreset:
    return bound(command(write(folder, "MULTI_GPU"), more), **{"cluster": "h100x16", **args})


def planned(preset: AcceleratePreset) -> PlanSubject:
    return preset.subject("")


def why_not(preset: AcceleratePreset) -> str:
    with pytest.raises(UsageError) as raised:
        preset.subject("")
    return str(raised.value)


def test_after_the_baseline_a_model_that_no_argument_names_is_planned(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    assert isinstance(preset.get_recommended_strategy(), GridStrategy)
    assert len(preset.read_baseline(log(model()))) == 1
    subject = planned(preset)
    assert (subject.model.num_params, subject.model.num_layers) == (NUM_PARAMS, 32)
    assert (subject.job.seq_len, subject.job.precision, subject.cluster.name) == (512, "bf16", "h100x16")
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)


def test_a_line_of_the_model_without_steps_or_config_teaches_no_plan(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    preset.read_baseline(log(model(config=None)))
    assert "config" in why_not(preset)
    assert isinstance(preset.get_recommended_strategy(), GridStrategy)


@pytest.mark.parametrize("num_params", [NUM_PARAMS, NUM_PARAMS + 167_772_160], ids=["frozen layers", "an adapter"])
def test_a_model_that_is_trained_in_part_is_planned_as_such(tmp_path: Path, num_params: int) -> None:
    named = plain(tmp_path, "--batch_size 2 --model_name_or_path llama3-8b --block_size 512")
    [note] = named.read_baseline(log(model(parameters=num_params, trained=167_772_160)))
    assert "168M" in note
    assert planned(named).model.trained_share == 167_772_160 / num_params
    assert isinstance(named.get_recommended_strategy(), GuidedStrategy)


def test_a_model_that_the_user_gives_stays(tmp_path: Path) -> None:
    preset = plain(tmp_path, model="llama3-8b", seq=1024)
    assert preset.read_baseline(log(model(trained=4_194_304))) == []
    assert (planned(preset).model.name, planned(preset).job.seq_len) == ("llama3-8b", 1024)


def test_a_model_that_the_command_names_rightly_teaches_nothing(tmp_path: Path) -> None:
    preset = plain(tmp_path, "--batch_size 2 --model_name_or_path llama3-8b --block_size 512")
    assert preset.read_baseline(log(model())) == []


def test_a_module_that_its_config_does_not_describe_is_not_planned_by_it(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    preset.read_baseline(log(model(parameters=NUM_PARAMS // 2, trained=NUM_PARAMS // 2)))
    assert "8.03B" in why_not(preset)


def test_of_several_models_none_is_planned(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    preset.read_baseline(log(model(models=2)))
    assert "2 models" in why_not(preset)


def test_the_batch_and_the_precision_that_only_the_script_knows_are_learnt(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "FSDP"), ""), cluster="h100x16")
    preset.read_baseline(log(model(), type="FSDP", wrapper="FSDPModule", precision="fp16"))
    assert planned(preset).job.precision == "fp16"
    assert preset.layout({"reshard": True, "checkpointing": False}).micro_batch == 2
    assert preset.layout({"reshard": True, "checkpointing": False}).global_batch == 32
    assert "mbs" not in choices(preset)


def test_weights_in_half_precision_are_computed_in_it(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    preset.read_baseline(log(model(dtype="float16"), precision="no"))
    assert planned(preset).job.precision == "fp16"


def test_the_gpus_that_the_command_ran_on_are_planned_for_where_this_machine_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    preset = plain(tmp_path, cluster=None)
    preset.read_baseline(log(model(gpu="NVIDIA H100 80GB HBM3")))
    assert planned(preset).cluster.name == "h100x16"
    unknown = plain(tmp_path, cluster=None)
    [note] = unknown.read_baseline(log(model(gpu="Voodoo 2")))
    assert "nvidia-smi" in note and isinstance(unknown.get_recommended_strategy(), GridStrategy)


@pytest.mark.parametrize("event", [{}, {"parameters": "many", "trained": 1}, {"parameters": 1, "trained": -1}])
def test_a_line_that_is_none_of_ours_is_no_model(event: dict[str, Any]) -> None:
    assert LiveModel.of(event) is None


def test_a_line_with_other_kinds_of_values_is_read_as_far_as_it_goes() -> None:
    found = LiveModel.of(model(config=[1], input={"shape": ["a"]}, gpu=3, blocks={"count": "x"}, head=None))
    assert found is not None
    assert (found.config, found.input_shape, found.gpu, found.blocks, found.head) == (None, (), None, None, 0)


BLOCKS = {"class": "Block", "count": 12, "parameters": 7_000_000, "input": [2, 512, 768], "input_bytes": 3_145_728}
KEPT = {"kept_bytes": 2 * 512 * 30_000, "kept_outside_bytes": 2 * 512 * 4_000}
NUM_ALL = 12 * 7_000_000 + 768 * (50_000 + 1_024)


def traced(**values: Any) -> dict[str, Any]:
    """Return the line on a module of its own kind, with twelve blocks, an embedding that is the head, and positions."""
    blocks = {**BLOCKS, **KEPT, **values.pop("blocks", {})}
    counts = {"parameters": NUM_ALL, "trained": NUM_ALL, "head": 50_000}
    return model(**{"class": "Gpt", "config": None, **counts, "blocks": blocks, **values})


def test_a_module_without_a_config_is_planned_by_its_blocks(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    assert len(preset.read_baseline(log(traced()))) == 1
    found = planned(preset)
    assert (found.model.num_params, found.model.num_layers, found.model.vocab) == (NUM_ALL, 12, 50_000)
    assert (found.model.saved_layer_bytes, found.model.saved_other_bytes) == (30_000, 4_000)
    assert found.job.seq_len == 512
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)


def test_the_tokens_of_an_image_are_those_that_a_block_sees(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    image = {"name": "pixels", "shape": [2, 3, 224, 224]}
    preset.read_baseline(log(traced(input=image, blocks={"input": [2, 197, 768], "input_bytes": 1_210_368})))
    assert planned(preset).job.seq_len == 197
    convolutions = plain(tmp_path)
    convolutions.read_baseline(log(traced(input=image, blocks={"input": [2, 256, 14, 14], "input_bytes": 401_408})))
    assert (planned(convolutions).job.seq_len, planned(convolutions).model.hidden) == (196, 256)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (traced(blocks={"kept_bytes": 3_145_728}), "checkpointing"),
        (traced(blocks={"kept_bytes": 0}), "not seen"),
        (traced(blocks={"input": None}), "not seen"),
        (traced(blocks={"count": 0}), "no block"),
        (traced(input=None), "no block"),
    ],
)
def test_blocks_that_were_not_seen_are_not_planned(tmp_path: Path, event: dict[str, Any], named: str) -> None:
    preset = plain(tmp_path)
    preset.read_baseline(log(event))
    assert named in why_not(preset)


def test_megatron_splits_no_blocks_that_it_does_not_know(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, "MEGATRON_LM")), cluster="h100x16")
    preset.read_baseline(log(traced(), type="MEGATRON_LM", wrapper="MegatronEngine"))
    assert "Megatron" in why_not(preset)
