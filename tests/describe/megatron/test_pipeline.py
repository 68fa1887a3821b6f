from __future__ import annotations

import shlex

import pytest

from tests.mentions import mentions
from zenith_tune.describe.framework_spec import OwnPipeline
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.describe.megatron.pipeline import chunks_of, own_pipeline
from zenith_tune.errors import UsageError

LAYOUT, FIRST, LAST = (
    f"--{name}"
    for name in (
        "pipeline-model-parallel-layout",
        "decoder-first-pipeline-num-layers",
        "decoder-last-pipeline-num-layers",
    )
)
EMBEDDING, LOSS = (f"--account-for-{name}-in-pipeline-split" for name in ("embedding", "loss"))


def own(options: str, num_layers: int, pp: int, vp: int = 1) -> OwnPipeline | None:
    return own_pipeline(MegatronArgs.of(shlex.split(options)), num_layers, pp=pp, vp=vp)


@pytest.mark.parametrize(
    ("layout", "chunks"),
    [
        ("Et*3|(tt|)*3m|L", ["Ettt", "tt", "tt", "tt", "m", "L"]),
        ("E|t|*3,t,L", ["E", "t", "", "", "tL"]),
        ("E(tt|t)*2,L", ["Ett", "ttt", "tL"]),
        ("Etm*2L", ["EtmmL"]),
    ],
)
def test_a_layout_is_written_out_as_megatron_does(layout: str, chunks: list[str]) -> None:
    assert chunks_of(layout) == chunks


def test_layers_of_ranks_are_those_of_their_chunks() -> None:
    # DeepSeek-V3 over 16 ranks of 2 chunks, the layer for multi-token prediction before the loss.
    found = own(f"{LAYOUT} 'Et*3|(tt|)*29m|L'", 61, 16, 2)
    assert found is not None and len(found.layers) == 32
    assert [found.on_rank(rank) for rank in (0, 1, 13, 14, 15)] == [5, 4, 4, 2, 2]
    assert found.mtp_rank == 14


@pytest.mark.parametrize(
    ("options", "num_layers", "pp", "vp", "ranks"),
    [
        (f"{FIRST} 5", 32, 4, 1, [5, 9, 9, 9]),
        (f"{LAST} 5", 32, 4, 1, [9, 9, 9, 5]),
        (f"{FIRST} 6 {LAST} 2", 32, 4, 2, [6, 12, 12, 2]),
        (f"{LOSS}", 31, 4, 1, [8, 8, 8, 7]),
        (f"{EMBEDDING} {LOSS}", 30, 4, 2, [7, 8, 8, 7]),
    ],
)
def test_uneven_ends_of_a_pipeline(options: str, num_layers: int, pp: int, vp: int, ranks: list[int]) -> None:
    found = own(options, num_layers, pp, vp)
    assert found is not None
    assert [found.on_rank(rank) for rank in range(pp)] == ranks
    assert len(found.layers) == pp * vp and sum(found.layers) == num_layers


@pytest.mark.parametrize("options", ["", f"{FIRST} 6", f"{LOSS}"])
def test_what_is_even_or_does_not_go_evenly_is_no_own_pipeline(options: str) -> None:
    assert own(options, 32, 4) is None


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("Et*4|t*4x|t*4|t*4L", ("x",)),
        ("Et*4|t*4|t*8L", ("3", "4")),
        ("Et*4|t*4|t*4|t*3L", ("16", "15")),
        ("t*4|t*4|t*4|t*4L", ("E",)),
        ("Et*4|t*4L|t*4|t*4", ("L",)),
    ],
)
def test_a_layout_that_megatron_would_refuse_is_refused(layout: str, said: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        own(f"{LAYOUT} '{layout}'", 16, 4)
    assert mentions(str(refused.value), LAYOUT, *said)


def test_a_first_stage_of_its_own_leaves_the_others_even() -> None:
    args = MegatronArgs.of(["--decoder-first-pipeline-num-layers", "5"])
    pipeline = own_pipeline(args, 32, pp=4, vp=1)
    assert pipeline is not None
    assert pipeline.layers == (5, 9, 9, 9)
