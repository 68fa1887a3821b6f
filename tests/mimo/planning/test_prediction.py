from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mimo.planning.jobs import INSTANT, SLOW, mimo_job, module
from zenith_mimo.planning import timeline
from zenith_mimo.planning.candidate import MimoCandidate, mimo_candidates
from zenith_mimo.planning.job import MODULES
from zenith_mimo.planning.prediction import plan_mimo, predict
from zenith_mimo.planning.work import ModuleRates, ModuleWork, PassRate


def apart(
    num_ranks: int, encoder: tuple[int, int], language: tuple[int, int], encoder_ranks: int, mbs: int = 1
) -> MimoCandidate:
    return MimoCandidate.of(num_ranks, encoder=encoder, language=language, encoder_ranks=encoder_ranks, micro_batch=mbs)


def test_equal_stages_take_the_time_of_1f1b() -> None:
    # Narayanan et al., arXiv 2104.04473, section 2.2: m micro-batches over p equal stages take (m + p - 1) (f + b).
    job = mimo_job(3, encoder=module(2, 1.0), language=module(4, 1.0))
    found = predict(job, apart(3, (1, 1), (1, 2), 1))
    assert found.encoder_stage_s == found.language_stage_s == 6.0
    assert found.step_s == pytest.approx((8 + 3 - 1) * 6.0)
    assert found.compute_s == pytest.approx(8 * 6.0)
    assert found.idle_s == pytest.approx(2 * 6.0)


def test_the_slowest_stage_sets_the_pace() -> None:
    job = mimo_job(2, encoder=module(2, 1.0), language=module(4, 2.0), global_batch=64)
    found = predict(job, apart(2, (1, 1), (1, 1), 1))
    assert found.language_stage_s == 24.0 and found.encoder_stage_s == 6.0
    # Every micro-batch on the language model's rank, one forward before them and one backward after on the encoder's.
    assert found.step_s == pytest.approx(64 * 24.0 + 6.0)


def test_shared_ranks_compute_all_the_work_together_and_wait_for_nothing() -> None:
    job = mimo_job(4)
    found = predict(job, apart(4, (1, 1), (1, 1), 0))
    assert found.step_s == pytest.approx(8 * (2 + 4) * 3 / 4)
    assert found.idle_s == 0.0


def test_ranks_that_share_cores_take_turns() -> None:
    job = mimo_job(4, encoder=module(2, 1.0), language=module(4, 1.0))
    device = replace(job.device, update_s=1e-3)
    for share in (1.0, 0.5, 0.25):
        cores = replace(job, device=replace(device, share=share))
        full = predict(cores, apart(4, (1, 1), (1, 1), 0))
        # Eight samples of 18 on four ranks without waiting, and 6060 parameters to be updated on each.
        assert full.step_s - full.sync_s == pytest.approx(8 * 18 / 4 / share)
        assert full.sync_s == pytest.approx(6060 * 1e-3 / share)
        # A pipeline of four stages: its waiting costs nothing as long as the cores have other work.
        span_s, work_s = predict(job, apart(4, (1, 1), (1, 3), 1)).step_s, 8 * 18 / 4
        assert span_s > work_s
        piped = predict(cores, apart(4, (1, 1), (1, 3), 1))
        assert piped.step_s - piped.sync_s == pytest.approx(max(span_s, work_s / share))


def test_on_shared_cores_the_layout_with_the_least_work_is_the_best() -> None:
    # Half of a layer is done by every rank of a tensor-parallel group, and one sample cannot be shared out otherwise.
    language = module(4, 1.0)
    language = replace(language, layer=replace(language.layer, split_flops=1.0, whole_flops=1.0))
    job = mimo_job(4, language=language, global_batch=1)
    own, shared = (
        plan_mimo(replace(job, device=replace(job.device, share=share))).ranked[0].candidate for share in (1.0, 0.25)
    )
    assert own.language.tp == 4 and shared.language.tp == 1


def test_the_start_of_each_layer_adds_up_where_nothing_hides_it() -> None:
    job = mimo_job(2)
    rate = PassRate(flops_per_s=1.0, start_s=0.5)
    slow = replace(
        job, device=replace(job.device, rates=dict.fromkeys(MODULES, ModuleRates(forward=rate, backward=rate)))
    )
    few, many = (apart(2, (1, 1), (1, 1), 0, mbs=mbs) for mbs in (4, 1))
    # Six layers forward and backward for each micro-batch: one of four samples, or four of one.
    assert predict(slow, few).step_s - predict(job, few).step_s == pytest.approx(6 * 2 * 0.5)
    assert predict(slow, many).step_s - predict(job, many).step_s == pytest.approx(4 * 6 * 2 * 0.5)


def test_lanes_with_more_items_are_waited_for_unless_the_encoder_shares_them_out() -> None:
    job = mimo_job(4, items=(4, 0, 0, 0))
    alone = predict(job, apart(4, (1, 1), (1, 1), 0, mbs=2))
    together = predict(job, apart(4, (4, 1), (1, 1), 0, mbs=2))
    # Eight samples have 8 items: on 4 lanes of 2 samples, two lanes have 4 items and two have none.
    assert alone.step_s == pytest.approx(2 * 4 * 3 + 4 * 2 * 3)
    assert together.step_s == pytest.approx(2 * 4 * 3 + 2 * 2 * 3)
    assert alone.idle_s == pytest.approx(12.0) and together.idle_s == pytest.approx(0.0)


def test_siblings_that_gather_meet_at_each_micro_batch() -> None:
    # Lanes of one item each in turn: together they are even, but the language model waits for the fuller one each time.
    job = mimo_job(2, items=(1, 0, 0, 1), global_batch=4)
    met = predict(job, apart(2, (1, 1), (2, 1), 0, mbs=2))
    assert met.encoder_stage_s == pytest.approx(3.0)
    # The language model twice, a forward before it, both backwards: the second forward hides behind the first.
    assert met.step_s == pytest.approx(2 * 12 + 2 + 4 + 4)


def test_fan_in_waits_for_all_its_lanes() -> None:
    even = predict(mimo_job(3, items=(2, 2), global_batch=2), apart(3, (1, 1), (1, 1), 2, mbs=2))
    uneven = predict(mimo_job(3, items=(4, 0), global_batch=2), apart(3, (1, 1), (1, 1), 2, mbs=2))
    assert even.compute_s == uneven.compute_s
    # One micro-batch: forward of the fuller lane, the language model, backward of the fuller lane.
    assert even.step_s == pytest.approx(2 * 2 + 2 * 12 + 2 * 4)
    assert uneven.step_s == pytest.approx(4 * 2 + 2 * 12 + 4 * 4)


def test_messages_and_sums_cost_what_the_link_says() -> None:
    at = apart(4, (2, 1), (2, 1), 2, mbs=8)
    instant, slow = predict(mimo_job(link=INSTANT), at), predict(mimo_job(link=SLOW), at)
    # One micro-batch: two sums a layer each way, three more at the ends, each two steps of a ring of 2.
    assert instant.tensor_s == pytest.approx(0.0)
    assert slow.tensor_s == pytest.approx(((2 * 4 + 3) + (4 * 4 + 3)) / 2 * 2 * 0.01)
    # Four messages of the bridge: there and back, each handed on to a second rank.
    assert slow.step_s - instant.step_s == pytest.approx(((2 * 4 + 3) + (4 * 4 + 3)) * 2 * 0.01 + 4 * 0.01)


def test_recomputation_costs_the_blocks_forward_once_more() -> None:
    job = mimo_job(2)
    plain = MimoCandidate.of(2, encoder=(1, 1), language=(1, 1), encoder_ranks=0, micro_batch=4)
    again = MimoCandidate.of(
        2, encoder=(1, 1), language=(1, 1), encoder_ranks=0, micro_batch=4, language_recompute=True
    )
    assert predict(job, again).step_s - predict(job, plain).step_s == pytest.approx(4 * 4)
    assert predict(job, again).memory_bytes < predict(job, plain).memory_bytes


def test_a_frozen_module_has_the_backward_pass_that_gradients_through_it_need() -> None:
    at = apart(2, (1, 1), (1, 1), 0, mbs=4)
    trained = predict(mimo_job(2), at).step_s
    frozen, passing = (
        predict(mimo_job(2, encoder=frozen_module(2, 1.0, passes_gradient=passes)), at).step_s
        for passes in (False, True)
    )
    assert trained - frozen == pytest.approx(4 * 4)
    assert trained - passing == pytest.approx(4 * 2)


def frozen_module(num_layers: int, layer_flops: float, *, passes_gradient: bool) -> ModuleWork:
    work = module(num_layers, layer_flops)
    parts = {
        name: replace(getattr(work, name), is_trained=False, passes_gradient=passes_gradient)
        for name in ("first", "layer", "last")
    }
    return replace(work, **parts)


@pytest.mark.parametrize("items", [(2,), (3, 0, 1), (1, 0, 0, 2, 4, 0)])
def test_many_micro_batches_are_drawn_out_from_some(items: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    job = mimo_job(6, language=module(8, 0.7), global_batch=144, items=items, link=SLOW)
    found = {at: predict(job, at).step_s for at in mimo_candidates(job, mbs_max=1)}
    monkeypatch.setattr(timeline, "ENOUGH_ROUNDS", 1000)
    assert len(found) > 10
    assert found == pytest.approx({at: predict(job, at).step_s for at in found}, rel=1e-6)


def test_a_huge_batch_is_predicted_at_once() -> None:
    job = mimo_job(2, global_batch=10_000_000, items=(1, 0, 1))
    found = predict(job, apart(2, (1, 1), (1, 1), 1))
    assert found.step_s == pytest.approx(10_000_000 * 12.0, rel=0.01)
    assert predict(job, apart(2, (1, 1), (1, 1), 0)).step_s == pytest.approx(10_000_000 * (12 + 4) / 2, rel=0.01)


def test_uneven_items_that_are_even_after_all_take_as_long() -> None:
    for at in mimo_candidates(mimo_job(4), mbs_max=2):
        lanes_alike = predict(mimo_job(4, items=(2,)), at)
        each_lane = predict(mimo_job(4, items=(2, 2, 2, 2)), at)
        assert each_lane.step_s == pytest.approx(lanes_alike.step_s), at.label
