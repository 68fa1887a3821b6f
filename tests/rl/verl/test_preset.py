"""Jobs of verl 0.9.1.

The lines of steps are as its utils/logger/aggregate_logger.py prints the metrics of trainer/ppo/metric_utils.py.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zenith_rl.strategy import PhasesStrategy
from zenith_rl.verl.job import read_steps
from zenith_rl.verl.preset import VerlPreset
from zenith_tune.doctor.logged_run import logged_steps
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

Tune = Callable[..., subprocess.CompletedProcess[str]]
A = "actor_rollout_ref"
COMMAND = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
    f"data.max_prompt_length=512 data.max_response_length=1024 {A}.model.path=Qwen/Qwen2-7B-Instruct "
    f"{A}.actor.ppo_mini_batch_size=32 {A}.actor.ppo_micro_batch_size_per_gpu=4 "
    f"{A}.actor.fsdp_config.param_offload=True {A}.actor.fsdp_config.optimizer_offload=True "
    f"{A}.rollout.log_prob_micro_batch_size_per_gpu=8 {A}.ref.log_prob_micro_batch_size_per_gpu=8 "
    f'{A}.rollout.gpu_memory_utilization=0.6 {A}.rollout.n=5 \'trainer.logger=["console","wandb"]\' '
    "trainer.n_gpus_per_node=8 trainer.nnodes=1"
)
PACKED = COMMAND.replace(f"{A}.actor.ppo_micro_batch_size_per_gpu=4", f"{A}.actor.use_dynamic_bsz=True")
STEP = (
    "\x1b[36m(TaskRunner pid=4242)\x1b[0m step:{} - actor/pg_loss:{} - actor/grad_norm:np.float64(0.41) - "
    "perf/max_memory_reserved_gb:44.5 - timing_s/gen:{gen} - timing_s/update_actor:11.5 - timing_s/step:{step} - "
    "perf/total_num_tokens:480000 - perf/time_per_step:{step} - perf/throughput:{speed}\n"
)


def log(*seconds: float, loss: str = "0.012") -> str:
    return "".join(
        STEP.format(number, loss, gen=step - 15, step=step, speed=60000 / step)
        for number, step in enumerate(seconds, start=1)
    )


def bound(command: str = COMMAND, **arguments: Any) -> VerlPreset:
    preset = VerlPreset(**arguments)
    preset.bind(command)
    return preset


def point(preset: VerlPreset, **changes: Any) -> Params:
    own = preset.own_point(COMMAND)
    assert own is not None
    return {**own, **changes}


class TestContract(PresetContract):
    def make(self) -> VerlPreset:
        return bound()

    def command(self) -> str:
        return COMMAND


@pytest.mark.parametrize("start", ["python -m verl.trainer.main_ppo", "python3 /opt/verl/trainer/main_ppo.py"])
def test_its_trainer_is_recognised_also_in_a_script(start: str, tmp_path: Path) -> None:
    assert recognised_preset(f"{start} data.train_batch_size=64") == "verl"
    (tmp_path / "run.sh").write_text(f'set -x\n{start} \\\n  data.train_batch_size=64 "$@"\n')
    assert recognised_preset(f"bash {tmp_path}/run.sh") == "verl"


def test_the_job_is_read_from_the_overrides() -> None:
    preset = bound()
    own = {"tp": 2, "memory": 0.6, "log_probs": 8, "checkpointing": True, "offload": True, "mbs": 4}
    assert preset.own_point(COMMAND) == own
    assert isinstance(preset.get_recommended_strategy(), PhasesStrategy)
    # 32 prompts of 5 answers in an update, over 8 GPUs: 20 answers each.
    assert preset.get_search_space()["mbs"].grid(9) == [4, 1, 2, 5, 10, 20]
    resources = preset.resources(COMMAND)
    assert (resources.nodes, resources.gpus_per_node) == (1, 8)


def test_packed_micro_batches_are_searched_in_tokens() -> None:
    preset = bound(PACKED)
    space = preset.get_search_space()
    assert space["tokens"].grid(9) == [16384, 32768, 65536, 8192] and space["mbs"].grid(9) == [1]
    params = {**(preset.own_point(PACKED) or {}), "tokens": 32768}
    assert f"{A}.actor.ppo_max_token_len_per_gpu=32768" in preset.apply_parameters(PACKED, params)
    assert "tokens32768" in preset.label(params) and "mbs" not in preset.label(params)


def test_a_point_is_overrides_and_the_algorithm_stays() -> None:
    preset = bound()
    params = point(preset, tp=4, mbs=10, offload=False)
    best = ParsedCommand.of(preset.result_command(COMMAND, params, Path("/study"))).overrides
    own = ParsedCommand.of(COMMAND).overrides
    changed = {key: value for key, value in best.items() if own.get(key) != value}
    assert changed == {
        f"{A}.rollout.tensor_model_parallel_size": "4",
        f"{A}.actor.ppo_micro_batch_size_per_gpu": "10",
        f"{A}.actor.fsdp_config.param_offload": "false",
        f"{A}.actor.fsdp_config.optimizer_offload": "false",
    }
    trial = ParsedCommand.of(preset.apply_parameters(COMMAND, params)).overrides
    assert trial["trainer.total_training_steps"] == "20" and trial["trainer.logger"] == "[console]"
    assert trial["trainer.default_local_dir"] == "{trial_folder}/checkpoints"


def test_answers_up_to_their_limit_are_of_measured_runs_alone() -> None:
    plain, longest = bound(), bound(longest=True)
    key = f"{A}.rollout.ignore_eos"
    for command in (longest.apply_parameters(COMMAND, point(longest, tp=4)), longest.baseline_command(COMMAND)):
        assert ParsedCommand.of(command).overrides[key] == "true"
    assert key not in longest.result_command(COMMAND, point(longest, tp=4), Path("/study"))
    assert key not in plain.apply_parameters(COMMAND, point(plain))
    assert len(plain.warnings(COMMAND)) == 1 and "longest=true" in plain.warnings(COMMAND)[0]
    assert longest.warnings(COMMAND) == []


def test_a_script_gets_them_behind_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(COMMAND.replace(" data.train", " \\\n  data.train") + ' "$@"\n')
    command = f"bash {tmp_path}/run.sh"
    preset = bound(command)
    params = {**(preset.own_point(command) or {}), "tp": 8}
    assert preset.result_command(command, params, tmp_path) == f"{command} {A}.rollout.tensor_model_parallel_size=8"
    (tmp_path / "run.sh").write_text(COMMAND + "\n")
    with pytest.raises(UsageError, match="does not pass its arguments on"):
        bound(command)


def test_what_verl_needs_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"ppo_micro_batch_size_per_gpu, or .*use_dynamic_bsz=True"):
        bound("python -m verl.trainer.main_ppo data.train_batch_size=64")


def test_overrides_that_would_win_over_a_trials_are_refused(tmp_path: Path) -> None:
    start, _, rest = COMMAND.partition(" algorithm")
    (tmp_path / "run.sh").write_text(f'{start} "$@" algorithm{rest}\n')
    with pytest.raises(UsageError, match=r"has algorithm\.adv_estimator=grpo behind the arguments that it passes on"):
        bound(f"bash {tmp_path}/run.sh")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor.ppo_micro_batch_size_per_gpu=four", "above 0, but got 'four'"),
        ("actor.ppo_mini_batch_size=99999999999999999999", "above 0, but got 9999"),
        ("rollout.n=-4", "above 0, but got -4"),
        ("rollout.gpu_memory_utilization=7.5", "at most 1, but got 7.5"),
        ("rollout.gpu_memory_utilization=.nan", "at most 1, but got nan"),
    ],
)
def test_values_that_cannot_be_are_refused(override: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bound(f"{COMMAND} {A}.{override}")


def test_more_ranks_of_a_sequence_than_gpus_break_a_rule() -> None:
    assert bound(f"{COMMAND} {A}.actor.ulysses_sequence_parallel_size=16").own_point(COMMAND) is None


def test_a_value_that_refers_to_another_is_left_alone() -> None:
    referring = COMMAND.replace(
        "rollout.log_prob_micro_batch_size_per_gpu=8", "rollout.log_prob_micro_batch_size_per_gpu='${x}'"
    )
    preset = bound(referring)
    assert "log_probs" not in preset.get_search_space()


def test_steps_have_their_speed_their_memory_and_their_phases() -> None:
    logged = read_steps(log(60.0, 40.0, 42.0, 41.0))
    assert [step.seconds for step in logged.steps] == [60, 40, 42, 41]
    assert logged.peak_bytes == round(44.5 * 2**30)
    assert logged.phases == pytest.approx({"generation": 26, "update": 11.5, "other": 3.5})
    measured = bound().evaluator().measure(log(60.0, *[40.0] * 9), {"parameters": {}})
    assert measured.value == pytest.approx(60000 / 40 * 8) and measured.step_s == pytest.approx(40)
    assert measured.extra["phase:generation"] == pytest.approx(25)
    found = logged_steps(log(60.0, 40.0))
    assert found is not None and len(found.steps) == 2


def test_a_loss_that_is_nan_is_no_speed() -> None:
    with pytest.raises(ValueError, match="NaN: the loss"):
        bound().evaluator().measure(log(40.0, 40.0, loss="nan"), {"parameters": {}})


def test_levers_are_overrides() -> None:
    preset = bound()
    names = {each.name for each in preset.levers(COMMAND, point(preset))}
    assert names == {"prefill_tokens", "sequences", "fused_loss", "prefetch"}
    eager = f"{COMMAND} {A}.rollout.enforce_eager=True {A}.model.use_remove_padding=False"
    names = {each.name for each in bound(eager).levers(eager, point(bound(eager)))}
    assert {"cuda_graphs", "no_padding"} <= names


TRAINER = """
import sys
given = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:])
A = "actor_rollout_ref."
tp = int(given.get(A + "rollout.tensor_model_parallel_size", 2))
mbs = int(given[A + "actor.ppo_micro_batch_size_per_gpu"])
recomputes = given.get(A + "model.enable_gradient_checkpointing", "true").lower() == "true"
if mbs * (1 if recomputes else 4) > 40:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
gen, update = 20.0 + 2 * tp, (10 + 20 / mbs) * (1.3 if recomputes else 1)
step = gen + update
for number in range(1, int(given["trainer.total_training_steps"]) + 1):
    print(f"step:{number} - actor/pg_loss:0.01 - perf/max_memory_reserved_gb:{mbs} - timing_s/gen:{gen} - "
          f"timing_s/update_actor:{update} - perf/time_per_step:{step} - perf/throughput:{60000 / step}")
"""


def test_a_study_finds_the_best_of_each_phase_in_a_few_trials(zenithtune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "verl" / "trainer"
    folder.mkdir(parents=True)
    (folder / "main_ppo.py").write_text(TRAINER)
    command = COMMAND.replace("python3 -m verl.trainer.main_ppo", f"{sys.executable} {folder}/main_ppo.py")
    options = ("--args", "levers=none", "--no-confirm", "--json")
    done = zenithtune("optimize", *options, "--", *shlex.split(command))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"trial_finished"') <= 9
    best = done.stdout.splitlines()[-1]
    assert f"{A}.rollout.tensor_model_parallel_size=1" in best and "enable_gradient_checkpointing=false" in best
    assert f"{A}.actor.ppo_micro_batch_size_per_gpu=10" in best
