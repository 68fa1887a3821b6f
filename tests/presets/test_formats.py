from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.layouts.specs import LLAMA_405B, MODELS, job
from tests.mentions import mentions
from tests.presets.targets import target
from tests.thoroughness import few_quick
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import known_frameworks
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout_batch import layout_at
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.presets.emission import Target
from zenith_tune.presets.formats import FORMATS, default_format, format_named
from zenith_tune.tuner import PresetTuner


@pytest.mark.parametrize("model", few_quick(MODELS, 2), ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("megatron", "megatron"),
        ("ms-swift", "megatron"),
        ("deepspeed", "deepspeed"),
        ("accelerate", "megatron"),
        ("accelerate", "deepspeed"),
        ("accelerate", "fsdp"),
        ("accelerate", "hf-accelerate"),
    ],
)
def test_whatever_is_planned_for_a_format_it_can_write(model: ModelSpec, name: str, framework: str) -> None:
    at, cluster, kind = job(framework), load_cluster("h100x64"), format_named(name)
    space = kind.narrowed(SearchSpace.named("all", max_sizes={"mbs": 2}), framework)
    num_written = 0
    for batch in Candidates(model, at, 64, 512, space).batches():
        for index in range(0, len(batch), 97):
            emission = kind.emit(Target(layout=layout_at(batch, index), model=model, cluster=cluster, job=at))
            assert emission.text.endswith("\n")
            num_written += 1
    assert num_written > 0


def test_accelerate_gets_even_pipelines_only() -> None:
    space = format_named("accelerate").narrowed(SearchSpace(), "megatron")
    batches = list(Candidates(LLAMA_405B, job(), 2048, 2048, space).batches())
    assert {int(pp) for batch in batches for pp in batch.pp} == {1, 2}


@pytest.mark.parametrize(
    ("name", "framework", "others"),
    [
        ("megatron", "fsdp", ["accelerate"]),
        ("ms-swift", "deepspeed", ["deepspeed", "accelerate"]),
        ("deepspeed", "megatron", ["megatron", "trainjob", "ms-swift", "accelerate"]),
        ("accelerate", "jax", []),
    ],
)
def test_a_plan_for_a_framework_that_a_format_cannot_run_is_refused(
    name: str, framework: str, others: list[str]
) -> None:
    for refused in (
        lambda: format_named(name).narrowed(SearchSpace(), framework),
        lambda: format_named(name).emit(target(framework=framework)),
    ):
        with pytest.raises(UsageError) as caught:
            refused()
        assert mentions(caught.value.problem, f"--emit {name}", framework)
        assert mentions(caught.value.hint, "--framework")
        assert [each for each in FORMATS if mentions(caught.value.hint, each)] == others


def test_every_format_says_its_frameworks() -> None:
    assert {name for each in FORMATS.values() for name in each.frameworks} <= set(known_frameworks())


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'megatron'.*accelerate, deepspeed, megatron, ms-swift"):
        format_named("megatorn")
    assert set(FORMATS) == {"megatron", "trainjob", "ms-swift", "deepspeed", "accelerate"}


@pytest.mark.parametrize(
    ("name", "framework", "command", "preset"),
    [
        ("megatron", "megatron", "bash {}", "megatron-lm"),
        ("ms-swift", "megatron", "bash {}", "megatron"),
        ("deepspeed", "deepspeed", "deepspeed --num_gpus 8 train.py --deepspeed_config {}", "deepspeed"),
        ("accelerate", "megatron", "accelerate launch --config_file {} train.py", "accelerate"),
        ("accelerate", "deepspeed", "accelerate launch --config_file {} train.py", "accelerate"),
        ("accelerate", "fsdp", "accelerate launch --config_file {} train.py", "accelerate"),
    ],
)
def test_what_is_written_is_tuned_with_no_further_option(
    name: str, framework: str, command: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    emission = format_named(name).emit(target(framework=framework, cluster="h100x8", zero=1, global_batch=64))
    Path(emission.file_name).write_text(emission.text)
    Path("train.py").touch()
    tuner = PresetTuner(command.format(emission.file_name))
    assert tuner.config.preset_name == preset
    assert tuner.config.num_gpus == 8
    if preset != "accelerate":  # whose file does not say the batch
        assert all(
            layout.global_batch == 64
            for point in itertools.islice(tuner.preset.points(), 3)
            if (layout := tuner.preset.layout(point)) is not None
        )


def test_a_framework_has_a_default_format_or_none() -> None:
    assert default_format("fsdp") == "accelerate"
    assert default_format("torchtitan") is None
