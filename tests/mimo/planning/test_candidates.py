from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.mentions import mentions
from tests.mimo.planning.jobs import mimo_job, module
from zenith_mimo.planning.candidate import MimoCandidate, mimo_candidates, recomputing, why_not
from zenith_mimo.planning.config import MimoLayout, ModuleLayout
from zenith_mimo.planning.job import MimoJob
from zenith_mimo.planning.work import ModuleWork
from zenith_tune.errors import UsageError


def brute_force(job: MimoJob, mbs: tuple[int, ...]) -> set[tuple[ModuleLayout, ModuleLayout, int]]:
    """Try every pair of boxes against the rules of the runtime itself."""
    found = set()
    sizes = range(1, job.num_ranks + 1)
    boxes = [box for box in itertools.product(sizes, repeat=3) if box[0] * box[1] * box[2] <= job.num_ranks]
    for first, second, offset, size in itertools.product(boxes, boxes, range(job.num_ranks), mbs):
        encoder = ModuleLayout(tp=first[0], pp=first[1], dp=first[2])
        language = ModuleLayout(tp=second[0], pp=second[1], dp=second[2], offset=offset)
        try:
            layout = MimoLayout(modules={"encoder": encoder, "language": language})
            layout.num_microbatches(size, job.global_batch)
        except UsageError:
            continue
        splits = all(work.num_layers >= at.pp and not 4 % at.tp for work, at in _pairs(job, encoder, language))
        if layout.world_size == job.num_ranks and splits:
            found.add((encoder, language, size))
    return found


def _pairs(job: MimoJob, encoder: ModuleLayout, language: ModuleLayout) -> list[tuple[ModuleWork, ModuleLayout]]:
    return [(job.encoder, encoder), (job.language, language)]


@pytest.mark.parametrize(("num_ranks", "batch"), [(2, 8), (3, 6), (4, 8), (6, 12)])
def test_every_layout_that_the_runtime_takes_is_there_once(num_ranks: int, batch: int) -> None:
    job = mimo_job(num_ranks, global_batch=batch)
    found = [(at.encoder, at.language, at.micro_batch) for at in mimo_candidates(job, mbs_max=2)]
    assert len(found) == len(set(found))
    assert set(found) == brute_force(job, (1, 2))


def test_a_dialect_without_shared_ranks_or_a_pipelined_encoder_has_none() -> None:
    job = mimo_job(8, can_share_ranks=False, can_pipeline_encoder=False)
    found = list(mimo_candidates(job))
    assert found and not any(at.is_colocated or at.encoder.pp > 1 for at in found)
    assert any(at.is_colocated for at in mimo_candidates(mimo_job(8)))
    assert any(at.encoder.pp > 1 for at in mimo_candidates(mimo_job(8)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"encoder": ModuleLayout(dp=3), "language": ModuleLayout(dp=1, offset=3)},
            ("encoder's dp", "= 1 and 3"),
        ),
        ({"encoder": ModuleLayout(tp=3), "language": ModuleLayout(offset=3)}, ("the heads", "4 and tp 3")),
        ({"encoder": ModuleLayout(pp=3), "language": ModuleLayout(offset=3)}, ("pp 3", "2 layers")),
        ({"micro_batch": 3}, ("8", "3 * 2 = 6")),
        ({"language": ModuleLayout(dp=3, offset=2)}, ("encoder", "language", "2 and 3")),
        ({"language": ModuleLayout(offset=2), "micro_batch": 2}, ("3 ranks", "has 4")),
        ({"language": ModuleLayout(dp=2, offset=1)}, ("ranks 0 to 1", "ranks 1 to 2")),
        ({"expert_parallel": 2}, ("experts", "ep is 2")),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, object], named: tuple[str, ...]) -> None:
    good = MimoCandidate(encoder=ModuleLayout(dp=2), language=ModuleLayout(dp=2, offset=2), micro_batch=1)
    assert why_not(mimo_job(), good) is None
    reason = why_not(mimo_job(), replace(good, **changes))  # type: ignore[arg-type]
    assert reason is not None and all(each in reason for each in named)


def test_experts_are_laid_out_over_the_language_models_ranks_a_second_time() -> None:
    job = mimo_job(8, language=module(4, 1.0, num_experts=12), expert_tensor=1)
    at = MimoCandidate.of(8, encoder=(2, 2), language=(2, 2), encoder_ranks=4, micro_batch=2, expert_parallel=2)
    assert why_not(job, at) is None
    assert "4 and 1 * 3 * 2" in str(why_not(job, replace(at, expert_parallel=3)))
    assert mentions(why_not(job, replace(at, expert_parallel=8)), 12, "ep 8")
    assert "4 and 2 * 2 * 2" in str(why_not(replace(job, expert_tensor=2), at))


def test_uneven_items_are_joined_only_where_that_is_possible() -> None:
    at = MimoCandidate.of(4, encoder=(1, 1), language=(1, 2), encoder_ranks=2, micro_batch=2)
    assert (at.encoder.dp, at.language.dp) == (2, 1)
    for items, can_join in itertools.product([(1,), (2, 0)], [True, False]):
        reason = why_not(mimo_job(items=items, can_join_uneven=can_join), at)
        assert (reason is None) == (can_join or items == (1,))


def test_recomputation_goes_from_none_to_both_modules_or_is_fixed() -> None:
    at = MimoCandidate.of(2, encoder=(1, 1), language=(1, 1), encoder_ranks=1, micro_batch=1)
    flags = [(each.encoder_recompute, each.language_recompute) for each in recomputing(mimo_job(2), at)]
    assert flags == [(False, False), (True, False), (False, True), (True, True)]
    (fixed,) = recomputing(mimo_job(2, recompute=((False, True),)), at)
    assert fixed == replace(at, language_recompute=True)


def test_the_same_degrees_are_homogeneous_on_shared_ranks_and_apart() -> None:
    shared = MimoCandidate.of(4, encoder=(2, 1), language=(2, 1), encoder_ranks=0, micro_batch=1)
    apart = MimoCandidate.of(4, encoder=(2, 1), language=(2, 1), encoder_ranks=2, micro_batch=1)
    other = MimoCandidate.of(4, encoder=(1, 1), language=(2, 1), encoder_ranks=2, micro_batch=1)
    assert [at.is_homogeneous for at in (shared, apart, other)] == [True, True, False]
    assert mentions(shared.label, "tp2", "dp2", "shared", "mbs1") and "shared" not in apart.label


def test_ranks_that_cannot_be_filled_are_refused() -> None:
    with pytest.raises(UsageError, match=r"encoder.*2 \* 1 = 2.*\b3\b"):
        MimoCandidate.of(4, encoder=(2, 1), language=(1, 1), encoder_ranks=3, micro_batch=1)
