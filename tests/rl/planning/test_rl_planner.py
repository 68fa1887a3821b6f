"""Where a step that generates and trains runs best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plan_runs import Plan, as_json, planning
from zenith_rl.plan import plan_rl
from zenith_rl.planning.lengths import AnswerLengths
from zenith_rl.planning.rl_planner import ASLEEP_BYTES, PlacedStep
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import RISK
from zenith_tune.planner.planner import Planner

JOB: dict[str, Any] = {"prompts": 64, "group": 8, "prompt_len": 512, "response_len": "4096:900,3500"}
OPTIONS = ("--prompts", "64", "--group", "8", "--prompt-len", "512", "--response-len", "4096:900,3500")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


def of_kind(found: list[PlacedStep], *, together: bool) -> PlacedStep:
    return next(placed for placed in found if placed.together is together)


def test_phases_on_the_same_gpus_add_up_and_none_waits_for_another() -> None:
    best = plan_rl("qwen2.5-7b", "h100x8", **JOB)[0]
    assert best.together and best.idle == 0
    assert best.step_s == pytest.approx(sum(best.phases.values()))
    assert set(best.phases) >= {"generation", "log-probs", "reference", "update", "sync"}
    tokens = 512 * (512 + AnswerLengths.parse(JOB["response_len"]).mean)
    assert best.tokens_per_s_per_gpu == pytest.approx(tokens / best.step_s / 8)


def test_apart_one_phase_waits_for_the_other_unless_answers_may_be_older() -> None:
    now = of_kind(plan_rl("qwen2.5-7b", "h100x16", top=99, **JOB), together=False)
    later = of_kind(plan_rl("qwen2.5-7b", "h100x16", top=99, behind=1, **JOB), together=False)
    assert now.step_s == pytest.approx(sum(now.phases.values()))
    sync = later.phases["sync"]
    training = sum(later.phases.values()) - later.phases["generation"] - sync
    assert later.step_s == pytest.approx(sync + max(later.phases["generation"], training))
    assert later.idle < now.idle and later.step_s < now.step_s


def test_more_updates_and_a_critic_cost_time() -> None:
    plain, many, ppo = (
        plan_rl("qwen2.5-0.5b", "h100x2", **JOB, **more)[0]
        for more in ({"algorithm": "dapo"}, {"algorithm": "dapo", "updates": 64}, {"algorithm": "ppo"})
    )
    assert many.phases["update"] > plain.phases["update"]
    assert "reference" not in plain.phases and plain.step_s < ppo.step_s
    assert ppo.phases["critic"] == pytest.approx(ppo.phases["log-probs"] + ppo.phases["update"])


def test_states_go_to_the_host_only_where_the_cache_wants_their_memory() -> None:
    placed = {each.generation.tp: each for each in plan_rl("qwen2.5-32b", "h100x16", top=99, **JOB) if each.together}
    wide, narrow = placed[8], placed[2]
    assert "offload" not in wide.phases and wide.generation.memory_share < 0.5
    assert narrow.phases["offload"] > 0 and narrow.generation.memory_share > 0.9


def test_training_has_room_for_the_longest_prompt_and_answer() -> None:
    longest = {**JOB, "response_len": "32768:900,3500"}
    usual, long = (plan_rl("qwen2.5-3b", "h100x2", **job)[0] for job in (JOB, longest))
    assert long.training_bytes < long.capacity_bytes
    assert long.layout != usual.layout


def test_it_is_said_up_to_which_lengths_memory_suffices() -> None:
    best = plan_rl("qwen2.5-7b", "h100x8", **JOB)[0]
    cluster = load_cluster("h100x8")
    awake = replace(cluster.gpu, memory_bytes=round(cluster.gpu.memory_bytes - ASLEEP_BYTES))

    def risk(tokens: int) -> float:
        job = JobSpec(seq_len=tokens, framework=load_framework("megatron"))
        return float(Planner("qwen2.5-7b", replace(cluster, gpu=awake), job).estimate(best.layout).oom_probability[0])

    assert best.together and best.longest_tokens is not None and best.longest_tokens > 512 + 4096
    assert risk(best.longest_tokens) < RISK <= risk(round(1.04 * best.longest_tokens))


def test_the_command_prints_the_best_with_its_settings(plan: Plan) -> None:
    found = plan("--model", "qwen2.5-7b", "--cluster", "h100x8", "--rl", "grpo", *OPTIONS)
    assert found.code == 0
    assert found.out.startswith("best: ") and "tensor_model_parallel_size=" in found.out
    assert max(map(len, found.out.splitlines()[6:-2])) <= 80


def test_json_has_every_phase(plan: Plan) -> None:
    found = plan("--model", "qwen2.5-7b", "--cluster", "h100x8", "--rl", "dapo", *OPTIONS, "--top", "2", "--json")
    first, second = as_json(found)["placements"]
    assert first["step_s"] <= second["step_s"]
    assert sum(first["phases_s"].values()) == pytest.approx(first["step_s"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompts", "8"), "--prompts belongs to --rl"),
        (("--behind", "0", "--gbs", "8", "--seq", "8"), "--behind belongs to --rl"),
        (("--rl", "grpo", *OPTIONS, "--gbs", "8"), "of which --gbs is no part"),
        (("--rl", "grpo", "--prompts", "8"), "Missing options '--group', '--prompt-len', '--response-len'"),
        (("--rl", "grpo", *OPTIONS, "--updates", "7"), "7 updates of a step must divide its 512 answers"),
    ],
)
def test_what_does_not_belong_together_is_one_line(plan: Plan, options: tuple[str, ...], said: str) -> None:
    found = plan("--model", "qwen2.5-7b", "--cluster", "h100x8", *options)
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1


def test_what_fits_nowhere_says_so(plan: Plan) -> None:
    assert plan_rl("qwen2.5-72b", "h100x2", **JOB) == []
    found = plan("--model", "qwen2.5-72b", "--cluster", "h100x2", "--rl", "grpo", *OPTIONS)
    assert found.code == 1 and found.out == "no placement of qwen2.5-72b on h100x2 fits, together or apart\n"


def test_no_more_engines_than_answers_and_no_more_work_than_is_needed() -> None:
    few = plan_rl("gpt2", "h100x64", prompts=2, group=1, prompt_len=8, response_len=8, top=99)
    assert all(each.generation.engines <= 2 for each in few)
    much = plan_rl("qwen2.5-0.5b", "h100x8", prompts=20_000, group=100, prompt_len=64, response_len=512, top=1)
    less = plan_rl("qwen2.5-0.5b", "h100x8", prompts=2_000, group=100, prompt_len=64, response_len=512, top=1)
    assert much[0].phases["generation"] == pytest.approx(10 * less[0].phases["generation"], rel=0.05)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompts": 1_000_000, "group": 1000}, "1,000,000 prompts x 1,000"),
        ({"behind": 1_000_000}, "behind must be at most 64"),
        ({"group": 0}, "group must be a whole number from 1"),
        ({"algorithm": "dpo"}, "dpo"),
    ],
)
def test_numbers_of_no_step_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_rl("qwen2.5-0.5b", "h100x8", **{**JOB, **changed})
