from __future__ import annotations

import pytest

from tests.layouts.specs import LLAMA_405B, MODELS, job
from tests.mentions import mentions
from tests.presets.targets import target
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import known_frameworks
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout_batch import layout_at
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.presets.emission import Target
from zenith_tune.presets.formats import FORMATS, FRAMEWORKS, format_named


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
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
        ("deepspeed", "megatron", ["megatron", "ms-swift", "accelerate"]),
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
    assert FORMATS.keys() == FRAMEWORKS.keys()
    assert {name for names in FRAMEWORKS.values() for name in names} <= set(known_frameworks())


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'megatron'.*accelerate, deepspeed, megatron, ms-swift"):
        format_named("megatorn")
    assert set(FORMATS) == {"megatron", "ms-swift", "deepspeed", "accelerate"}
