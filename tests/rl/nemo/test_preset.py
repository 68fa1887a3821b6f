"""GRPO jobs of NeMo RL: their files, overrides and logs.

The lines of a step are as its algorithms/grpo.py and algorithms/utils.py print them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zenith_rl.nemo.config import composed, resolved
from zenith_rl.nemo.job import read_steps
from zenith_rl.nemo.preset import NemoPreset
from zenith_rl.strategy import PhasesStrategy
from zenith_tune.doctor.logged_run import logged_steps
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

Tune = Callable[..., subprocess.CompletedProcess[str]]
BASE = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, max_num_steps: 1000, val_period: 10,
       val_at_start: false, val_at_end: false}
loss_fn: {force_on_policy_ratio: false, reference_policy_kl_penalty: 0.01}
checkpointing: {enabled: true, checkpoint_dir: results/grpo}
policy:
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 512
  make_sequence_length_divisible_by: ${policy.dtensor_cfg.tensor_parallel_size}
  dtensor_cfg: {enabled: true, cpu_offload: false, tensor_parallel_size: 1, context_parallel_size: 1,
                activation_checkpointing: false}
  megatron_cfg: {enabled: false, activation_checkpointing: false, tensor_model_parallel_size: 1,
                 pipeline_model_parallel_size: 1, context_parallel_size: 1, expert_model_parallel_size: 1,
                 sequence_parallel: false, apply_rope_fusion: true, empty_unused_memory_level: 1}
  dynamic_batching: {enabled: false}
  sequence_packing:
    enabled: false
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
    logprob_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.logprob_batch_size}}
  generation:
    backend: vllm
    temperature: 1.0
    val_temperature: ${.temperature}
    vllm_cfg: {tensor_parallel_size: 1, pipeline_parallel_size: 1, expert_parallel_size: 1,
               gpu_memory_utilization: 0.6, enforce_eager: false}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
logger: {log_dir: logs, wandb_enabled: true, tensorboard_enabled: false}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
MEGATRON = """
defaults: grpo.yaml
policy:
  train_micro_batch_size: 2
  make_sequence_length_divisible_by: 4
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, sequence_parallel: true, activation_checkpointing: true}
  sequence_packing: {enabled: true}
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "grpo.yaml").write_text(BASE)
    (folder / "megatron.yaml").write_text(MEGATRON)
    return f"uv run python {folder}/run_grpo.py --config {folder}/grpo.yaml ++policy.train_micro_batch_size=8"


def of_megatron(command: str) -> str:
    return command.replace("grpo.yaml ++policy.train_micro_batch_size=8", "megatron.yaml")


def bound(command: str, **arguments: Any) -> NemoPreset:
    preset = NemoPreset(**arguments)
    preset.bind(command)
    return preset


def point(preset: NemoPreset, **changes: Any) -> Params:
    own = preset.own_point("")
    assert own is not None
    return {**own, **changes}


class TestContract(PresetContract):
    @pytest.fixture(autouse=True)
    def _its_files(self, command: str) -> None:
        self.text = command

    def make(self) -> NemoPreset:
        return bound(self.text)

    def command(self) -> str:
        return self.text


def test_its_programs_are_recognised_and_no_others(tmp_path: Path) -> None:
    for start in ("uv run examples/run_grpo.py", "cd RL && uv run python ./examples/run_grpo_math.py --config a.yaml"):
        assert recognised_preset(start) == "nemo-rl"
    (tmp_path / "run_grpo.py").write_text("from nemo_rl.algorithms.grpo import grpo_train\n")
    assert recognised_preset(f"python {tmp_path}/run_grpo.py") == "nemo-rl"
    (tmp_path / "run_grpo.py").write_text("import trl\n")
    assert not NemoPreset.recognises(f"python {tmp_path}/run_grpo.py")


def test_files_inherit_and_values_refer_to_others(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "a: {b: 2, c: '${mul:${a.b}, 3}', d: '${.b}', gone: 1}\nsection: {x: 1}\nn: null\n"
    )
    (tmp_path / "own.yaml").write_text("defaults: base.yaml\na: {b: 5, e: '${n}'}\nsection: {_override_: true, y: 2}\n")
    tables = composed(tmp_path / "own.yaml")
    assert tables["section"] == {"y": 2} and tables["a"]["gone"] == 1
    values = resolved(tables, {"a.b": 7})
    assert (values["a.c"], values["a.d"], values["a.e"]) == (21, 7, None)
    (tmp_path / "base.yaml").write_text("defaults: own.yaml\n")
    with pytest.raises(UsageError, match="inherits itself"):
        composed(tmp_path / "own.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        composed(tmp_path / "none.yaml")


def test_the_job_is_read_from_file_and_overrides(command: str) -> None:
    preset = bound(command)
    own = {"tp": 1, "memory": 0.6, "log_probs": 8, "train_tp": 1, "checkpointing": False, "offload": False, "mbs": 8}
    assert preset.own_point(command) == own
    space = preset.get_search_space()
    assert space["mbs"].grid(9) == [8, 1, 2, 4, 16, 32, 64] and space["tp"].grid(9) == [1, 2, 4, 8]
    assert space["train_tp"].grid(9) == [1, 2], "from 4 on results differ, of which NeMo RL warns"
    assert space["offload"].grid(9) == [False] and isinstance(preset.get_recommended_strategy(), PhasesStrategy)
    resources = preset.resources(command)
    assert (resources.nodes, resources.gpus_per_node) == (1, 8)


def test_a_point_is_overrides_as_the_command_spells_them_and_the_algorithm_stays(command: str) -> None:
    preset = bound(command)
    best = preset.result_command(command, point(preset, tp=2, mbs=16), Path("/study"))
    assert best == command.replace("size=8", "size=16") + (
        " policy.generation.vllm_cfg.tensor_parallel_size=2 policy.logprob_batch_size=8"
    )
    trial = ParsedCommand.of(preset.apply_parameters(command, point(preset))).overrides
    assert trial["grpo.max_num_steps"] == "20" and trial["grpo.val_period"] == "0"
    assert trial["logger.wandb_enabled"] == "false" and "logger.tensorboard_enabled" not in trial
    assert trial["checkpointing.checkpoint_dir"] == "{trial_folder}/checkpoints"
    longest = bound(command, longest=True)
    assert "++policy.generation.ignore_eos=true" in longest.baseline_command(command), "the file has no such key"
    assert not any("num_prompts" in key or "num_generations" in key or "kl_penalty" in key for key in trial)


def test_packed_answers_are_searched_in_tokens_and_megatrons_sizes_are_its_own(command: str) -> None:
    packed = of_megatron(command)
    preset = bound(packed)
    space = preset.get_search_space()
    assert space["tokens"].grid(9) == [1024, 2048, 4096, 512] and space["log_probs"].grid(9) == [1024, 2048, 4096, 512]
    assert space["train_tp"].grid(9) == [4, 1, 2] and space["mbs"].grid(9) == [2], "lengths are padded to 4"
    found = ParsedCommand.of(preset.apply_parameters(packed, point(preset, train_tp=1, tokens=2048))).overrides
    assert found["policy.megatron_cfg.tensor_model_parallel_size"] == "1"
    assert found["policy.megatron_cfg.sequence_parallel"] == "false"
    assert found["policy.sequence_packing.train_mb_tokens"] == "2048"
    assert "policy.logprob_batch_size" not in found
    assert "tokens2048" in preset.label(point(preset, tokens=2048)) and "mbs" not in preset.label(point(preset))


def test_from_four_on_log_probabilities_are_taken_in_the_updates_micro_batches(command: str) -> None:
    split = f"{command} policy.dtensor_cfg.tensor_parallel_size=4"
    preset = bound(split)
    assert "log_probs" not in preset.get_search_space()
    found = ParsedCommand.of(preset.apply_parameters(split, point(preset, mbs=2))).overrides
    assert found["policy.logprob_batch_size"] == found["++policy.train_micro_batch_size"] == "2"
    exact = f"{split} loss_fn.force_on_policy_ratio=true"
    assert "log_probs" in bound(exact).get_search_space()


def test_gpus_that_generate_apart_are_not_trained_on(command: str) -> None:
    apart = f"{command} policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4"
    preset = bound(apart)
    assert preset.layout(point(preset)).num_gpus == 4 and preset.get_search_space()["tp"].grid(9) == [1, 2, 4]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("policy.train_global_batch_size=-4", "above 0, but got -4"),
        ("policy.generation.vllm_cfg.gpu_memory_utilization=7.5", "at most 1, but got 7.5"),
        ("cluster.gpus_per_node=eight", "above 0, but got 'eight'"),
    ],
)
def test_values_that_cannot_be_are_refused(command: str, override: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bound(f"{command} {override}")


def test_a_batch_that_the_ranks_do_not_divide_breaks_a_rule(command: str) -> None:
    assert bound(f"{command} policy.train_global_batch_size=12").own_point(command) is None


def test_a_script_passes_overrides_on(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f'{command} "$@"\n')
    preset = bound(f"bash {tmp_path}/run.sh")
    found = preset.result_command(f"bash {tmp_path}/run.sh", point(preset, mbs=4), tmp_path)
    assert "++policy.train_micro_batch_size=4" in found and found.startswith("bash ")
    (tmp_path / "run.sh").write_text(f"{command}\n")
    with pytest.raises(UsageError, match="does not pass its arguments on"):
        bound(f"bash {tmp_path}/run.sh")


def step(number: int, generation: float, update: float, *, loss: str = "0.0123", imbalance: str = "") -> str:
    seconds = generation + update + 5.0
    timers = {"policy_training": update, "generation": generation, "policy_and_reference_logprobs": 3.0}
    timers |= {"prepare_for_generation/total": 1.0, "prepare_for_generation/transfer_and_update_weights": 0.9}
    lines = [f"  • {name}: {each:.2f}s ({each / seconds:.1%})" for name, each in timers.items()]
    return "\n".join(
        [
            f"{'=' * 25} Step {number}/20 {'=' * 25}",
            "▶ Preparing batch...",
            "📊 Training Results:",
            f"  • Loss: {loss}",
            "  • Mean Generation Length: 310.5000",
            "⏱️  Timing:",
            f"  • Total step time: {seconds:.2f}s",
            *lines,
            "🔍 Performance Metrics:",
            *([f"  • Average Token Imbalance: {imbalance}%"] if imbalance else []),
            f"    - E2E (Tokens/sec/gpu): {30000 / seconds:.2f}",
            f"    - E2E (Tokens/sec): {240000 / seconds:.2f}",
            "",
        ]
    )


def test_steps_have_their_speed_and_their_phases(command: str) -> None:
    log = "".join(step(number, 20.0, 10.0) for number in range(1, 9))
    logged = read_steps(log)
    assert [each.number for each in logged.steps] == [*range(1, 9)]
    expected = {"generation": 20, "update": 10, "log-probs": 3, "sync": 1, "other": 1}
    assert logged.phases == pytest.approx(expected) and [*logged.phases][:2] == ["generation", "update"]
    measured = bound(command).evaluator().measure(log, {"parameters": {}})
    assert measured.value == pytest.approx(30000 / 35 * 8, rel=1e-3) and measured.step_s == pytest.approx(35)
    assert measured.extra["phase:generation"] == pytest.approx(20)
    assert logged_steps(log) == logged
    with pytest.raises(ValueError, match="NaN: the loss"):
        bound(command).evaluator().measure(step(1, 20.0, 10.0, loss="nan"), {"parameters": {}})


def test_a_log_says_which_engines_wait(command: str) -> None:
    first, *_ = read_steps("".join(step(number, 30.0, 10.0, imbalance="25.00") for number in range(1, 5))).findings
    assert first.phase == "generation" and "one GPU in 4 waits" in first.finding
    assert first.gain == pytest.approx(0.25 * 30 / 45)


TRAINER = """
import sys, pathlib
# nemo_rl
given = dict(word.lstrip("+").split("=", 1) for word in sys.argv[3:])
tp = int(given.get("policy.generation.vllm_cfg.tensor_parallel_size", 1))
mbs = int(given["policy.train_micro_batch_size"])
recomputes = given.get("policy.dtensor_cfg.activation_checkpointing", "false") == "true"
if mbs * (1 if recomputes else 4) > 40:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
generation, update = 20.0 + abs(tp - 2), (10 + 20 / mbs) * (1.3 if recomputes else 1)
total = generation + update
for number in range(1, int(given["grpo.max_num_steps"]) + 1):
    print(f"========================= Step {number}/20 =========================")
    print(f"  • Loss: 0.01\\n  • Total step time: {total:.2f}s\\n  • generation: {generation:.2f}s (60.0%)")
    print(f"  • policy_training: {update:.2f}s (40.0%)\\n    - E2E (Tokens/sec/gpu): {60000 / total:.2f}")
"""


def test_a_study_finds_the_best_of_each_phase_in_a_few_trials(zenithtune: Tune, command: str) -> None:
    program = shlex.split(command)[3]
    Path(program).write_text(TRAINER)
    started = command.replace("uv run python", sys.executable)
    options = ("--args", "levers=none,search=tp+mbs+checkpointing", "--no-confirm", "--json")
    done = zenithtune("optimize", *options, "--", *shlex.split(started))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"trial_finished"') <= 9
    best = done.stdout.splitlines()[-1]
    assert "vllm_cfg.tensor_parallel_size=2" in best and "++policy.train_micro_batch_size=8" in best
