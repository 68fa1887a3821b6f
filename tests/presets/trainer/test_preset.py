from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.presets.accelerate.logs import prepared, steps
from tests.presets.trainer.runs import OPTIONS, bound, run, trained
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.presets.trainer.preset import IN_TRIALS, TrainerPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Params
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.testing import PresetContract

IN_PYTHON = "torchrun --nproc-per-node 2 train.py"
SMALL: Params = {"mbs": 1, "checkpointing": True}
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}


class TestOptionsContract(PresetContract):
    text = f"srun {OPTIONS}"

    def make(self) -> TrainerPreset:
        return bound(self.text)

    def command(self) -> str:
        return self.text


class TestFileContract(TestOptionsContract):
    @pytest.fixture(autouse=True)
    def _written(self, tmp_path: Path) -> None:
        path = tmp_path / "args.yaml"
        path.write_text("output_dir: out\nper_device_train_batch_size: 8\n")
        self.text = f"srun python train.py {path}"


class TestPythonContract(TestOptionsContract):
    text = f"srun {IN_PYTHON}"

    def make(self) -> TrainerPreset:
        return live(IN_PYTHON, read_from="")


def live(command: str = OPTIONS, arguments: dict[str, Any] | None = None, **values: Any) -> TrainerPreset:
    """Return a preset that has seen a run of the command."""
    preset = bound(command)
    preset.read_baseline(run(arguments, **values))
    return preset


def hook_settings(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files["hook/hooks.json"])["trainer"]
    return found


def choices(preset: TrainerPreset) -> dict[str, list[Any]]:
    return {name: list(parameter.grid(100)) for name, parameter in preset.get_search_space().items()}


def test_the_batch_is_that_of_options_and_of_the_defaults_of_a_trainer() -> None:
    assert choices(bound()) == {"mbs": [4, 1, 2], "checkpointing": [False, True]}
    defaults = bound("python train.py --output_dir out --bf16 --gradient_checkpointing")
    assert choices(defaults) == {"mbs": [8, 1, 2, 4], "checkpointing": [True, False]}
    assert choices(bound(search="mbs", mbs_max=2)) == {"mbs": [4, 1, 2], "checkpointing": [False]}


def test_accumulation_keeps_the_global_batch_in_options() -> None:
    line = ParsedCommand.of(bound().apply_parameters(OPTIONS, SMALL))
    assert line.get("--per_device_train_batch_size") == "1" and line.get("--gradient_accumulation_steps") == "4"
    assert line.is_on("--gradient_checkpointing")
    assert set(hook_settings(bound().files(SMALL))["set"]) == {*IN_TRIALS, "max_steps"}


def test_the_best_command_by_options_needs_nothing_of_ours(tmp_path: Path) -> None:
    preset = live()
    text = preset.result_command(OPTIONS, SMALL, tmp_path)
    assert (
        text == f"{OPTIONS.replace('size 4', 'size 1')} --gradient_accumulation_steps 4 --gradient_checkpointing true"
    )
    assert preset.result_files(SMALL) == {}


def test_a_command_that_is_best_as_it_is_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 4}')
    for command, read_from in {OPTIONS: "options", f"{IN_PYTHON} {path}": "file", IN_PYTHON: ""}.items():
        preset = live(command, read_from=read_from)
        point = preset.own_point(command)
        assert point is not None
        assert (preset.result_command(command, point, tmp_path), preset.result_files(point)) == (command, {})


def test_a_file_is_changed_in_a_copy(tmp_path: Path) -> None:
    own = {"output_dir": "out", "per_device_train_batch_size": 8, "lora_r": 4}
    path = tmp_path / "args.yaml"
    path.write_text(yaml.safe_dump(own))
    command = f"python train.py {path}"
    preset = live(command, {"per_device_train_batch_size": 8}, world=1, read_from="file")
    wanted = {**own, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "gradient_checkpointing": True}
    assert yaml.safe_load(preset.files(SMALL)["trainer_arguments.yaml"]) == wanted
    assert preset.apply_parameters(command, SMALL).endswith("python train.py {trial_folder}/trainer_arguments.yaml")
    assert set(preset.result_files(SMALL)) == {"trainer_arguments.yaml"}
    text = preset.result_command(command, SMALL, tmp_path / "s")
    assert text == f"python train.py {tmp_path}/s/trainer_arguments.yaml"


GENERATES = {"num_generations": 4, "generation_batch_size": 16}
FOUR: Params = {"mbs": 4, "checkpointing": False}


def grpo(command: str = OPTIONS, **arguments: Any) -> TrainerPreset:
    """Return the preset of two ranks that train 2 samples in each of 4 passes, and generate 16 at once."""
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    return live(command, {**batch, **GENERATES, **arguments}, passes=4, samples=64, read_from="options")


def test_what_is_generated_at_once_stays_as_it_is_with_any_micro_batch() -> None:
    command = f"{OPTIONS.replace('size 4', 'size 2')} --gradient_accumulation_steps 4 --steps_per_generation 8"
    preset = grpo(command, steps_per_generation=8, generation_batch_size=32)
    line = ParsedCommand.of(preset.apply_parameters(command, FOUR))
    assert [line.get(f"--{name}") for name in ("gradient_accumulation_steps", "steps_per_generation")] == ["2", "4"]
    # By the Trainer's defaults it follows the update, and --generation_batch_size says it itself.
    for given in ("", " --generation_batch_size 16"):
        command = OPTIONS.replace("size 4", "size 2") + " --gradient_accumulation_steps 4" + given
        text = grpo(command).apply_parameters(command, FOUR)
        assert "steps_per_generation" not in text and text.endswith(given)


def test_micro_batches_that_do_not_divide_what_is_generated_are_left_out() -> None:
    assert choices(grpo())["mbs"] == [2, 1, 4, 8]
    assert choices(grpo(steps_per_generation=6, generation_batch_size=24))["mbs"] == [2, 1, 4]


def test_samples_of_an_update_are_what_is_trained_and_not_what_is_generated() -> None:
    preset = grpo()
    arguments = {**GENERATES, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    log = run(arguments, passes=2, samples=32)
    assert preset.evaluator().measure(log, {"parameters": FOUR}).value == pytest.approx(16.0)


def test_a_step_has_its_share_of_generating_what_several_steps_train_on() -> None:
    preset = grpo(num_iterations=2)
    arguments = {**GENERATES, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_iterations": 2}
    seconds = [1.0, 4.0, 2.0, 4.0, 2.0, 4.0, 2.0]
    log = trained(arguments) + "".join(prepared(f"host:{rank}", processes=2) for rank in range(2))
    log += steps(seconds, passes=4, samples=64)
    assert preset.evaluator().measure(log, {"parameters": {}}).value == pytest.approx(16 / 3.0)


def test_what_a_script_sets_in_python_is_set_by_the_hook(tmp_path: Path) -> None:
    preset = live(IN_PYTHON, read_from="")
    assert ParsedCommand.of(preset.apply_parameters(IN_PYTHON, SMALL)).get("--per_device_train_batch_size") is None
    asked = hook_settings(preset.files(SMALL))["set"]
    wanted = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "gradient_checkpointing": True}
    assert asked == {**IN_TRIALS, "max_steps": 100, **wanted}
    files = preset.result_files(SMALL)
    assert json.loads(files["trainer_arguments/hooks.json"]) == {"trainer": {"set": wanted}}
    assert {"trainer_arguments/sitecustomize.py", "trainer_arguments/zenithtune_hooks/trainer.py"} < set(files)
    text = preset.result_command(IN_PYTHON, SMALL, tmp_path)
    assert f"PYTHONPATH={tmp_path}/trainer_arguments" in text and text.endswith(IN_PYTHON)


def test_a_parser_of_its_own_gets_the_options_that_it_has_and_the_hook_the_rest() -> None:
    preset = live(OPTIONS, read_from="")
    line = ParsedCommand.of(preset.apply_parameters(OPTIONS, SMALL))
    assert line.get("--per_device_train_batch_size") == "1" and line.get("--gradient_accumulation_steps") is None
    asked = hook_settings(preset.files(SMALL))["set"]
    assert asked["gradient_accumulation_steps"] == 4 and "per_device_train_batch_size" not in asked


def test_a_run_shows_arguments_that_the_text_does_not() -> None:
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "gradient_checkpointing": True}
    preset = live(IN_PYTHON, arguments, samples=12, passes=3, read_from="")
    assert choices(preset) == {"mbs": [2, 1, 3, 6], "checkpointing": [True, False]}
    assert preset.own_point(IN_PYTHON) == {"mbs": 2, "checkpointing": True}
    assert bound(IN_PYTHON).own_point(IN_PYTHON) is None


def test_checkpointing_that_the_script_turns_on_itself_stays() -> None:
    preset = live(checkpointing=True)
    assert choices(preset)["checkpointing"] == [True]
    line = ParsedCommand.of(preset.apply_parameters(OPTIONS, {"mbs": 1, "checkpointing": True}))
    assert not line.has("--gradient_checkpointing")
    assert "gradient_checkpointing" not in preset.evaluator().arguments({"mbs": 1, "checkpointing": True})  # type: ignore[attr-defined]


def test_arguments_in_python_are_not_known_without_a_run() -> None:
    with pytest.raises(UsageError):
        bound(IN_PYTHON).read_baseline("")
    assert bound(OPTIONS).read_baseline("") == []


def test_what_is_larger_than_a_batch_that_did_not_fit_costs_no_trial() -> None:
    preset = bound("python train.py --per_device_train_batch_size 8")
    preset.observe(Trial(params={"mbs": 2, "checkpointing": True}, outcome=Outcome.OOM))
    points = [{"mbs": size, "checkpointing": is_on} for size in (1, 2, 4) for is_on in (False, True)]
    assert [preset.explain(point) is not None for point in points] == [False, False, False, False, True, True]
    other = bound("python train.py --per_device_train_batch_size 8")
    other.observe(Trial(params={"mbs": 2, "checkpointing": False}, outcome=Outcome.OOM))
    assert [other.explain(point) is not None for point in points] == [False, False, False, False, True, False]


def model_event(**values: Any) -> str:
    event = {"event": "model", "class": "LlamaForCausalLM", "name": "", "config": CONFIG, "parameters": 90_432}
    event |= {"trained": 90_432, "models": 1, "dtype": "bfloat16", "head": 128, "gpu": "NVIDIA H100 80GB HBM3"}
    event |= {"input": {"name": "input_ids", "shape": [4, 32]}, "blocks": None}
    return f"zenithtune-accelerate: {json.dumps({**event, **values})}\n"


def test_the_live_model_is_planned_and_so_is_one_that_is_trained_in_part() -> None:
    log = run(samples=8).replace('"passes": 1', '"passes": 1, "sequence": 32')
    whole, part = bound(), bound()
    whole.read_baseline(log + model_event(trained=90_432))
    assert isinstance(whole.get_recommended_strategy(), GuidedStrategy)
    subject = whole.subject(OPTIONS)
    assert (subject.model.num_layers, subject.job.seq_len, subject.job.framework.name) == (2, 32, "hf-accelerate")
    assert (subject.cluster.num_gpus, subject.job.precision) == (2, "bf16")
    assert whole.layout(SMALL).recompute == "full/uniform"
    part.read_baseline(log + model_event(trained=4096))
    assert isinstance(part.get_recommended_strategy(), GuidedStrategy)
    assert (subject.model.trained_share, part.subject(OPTIONS).model.trained_share) == (1.0, 4096 / 90_432)


def test_batches_of_many_lengths_are_planned_with_what_the_first_of_each_takes() -> None:
    line = run(samples=8)
    num_steps = line.count('"passes": 1')
    equal, varied = bound(), bound()
    equal.read_baseline(line.replace('"passes": 1', '"passes": 1, "sequence": 32') + model_event())
    for number in range(num_steps):
        line = line.replace('"passes": 1,', f'"passes": 1 , "sequence": {32 - number},', 1)
    notes = varied.read_baseline(line + model_event())
    shares = [preset.subject(OPTIONS).job.new_shapes for preset in (equal, varied)]
    assert num_steps > 2 and shares == [0.0, 1.0]
    assert any("pad_to_multiple_of" in note for note in notes)


def test_a_sharded_trainer_is_searched_without_a_plan() -> None:
    preset = bound(model="llama3-8b", seq=2048, cluster="h100x2")
    assert preset.subject(OPTIONS).model.num_layers == 32
    preset.read_baseline(run().replace("DistributedDataParallel", "FSDPModule"))
    with pytest.raises(UsageError):
        preset.subject(OPTIONS)


def measured(preset: TrainerPreset, log: str, params: Params | None = None) -> float:
    return preset.evaluator().measure(log, {"parameters": params or {}}).value


def test_the_speed_is_that_of_the_samples_of_the_run() -> None:
    assert measured(bound(), run()) == 8.0
    assert measured(bound(IN_PYTHON), run(samples=None)) == 8.0, "a stream does not tell its samples"
    assert bound().evaluator().measure(run(), {"parameters": {}}).unit == "samples/s"


def test_an_argument_that_did_not_arrive_fails_the_trial() -> None:
    preset, asked = live(), {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    arrived = {**asked, "gradient_checkpointing": True}
    assert measured(preset, run(arrived, passes=4), SMALL) == 8.0
    others: tuple[dict[str, Any], ...] = ({}, asked, {**arrived, "gradient_accumulation_steps": 2})
    for other in others:
        with pytest.raises(OtherSettingsError):
            measured(preset, run(other, passes=4), SMALL)
    with pytest.raises(OtherSettingsError):
        measured(preset, run(arrived, passes=4, samples=16), SMALL)


def test_a_program_without_a_trainer_has_no_value_and_says_what_to_do() -> None:
    for log in ("hello\n", "trained\n" + run().partition("\n")[2]):
        with pytest.raises(ValueError, match="--space"):
            measured(bound(IN_PYTHON), log)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 4"):
        measured(bound(IN_PYTHON), run(gpus_of_process=4))


def test_processes_that_only_a_run_tells_are_taken_from_it() -> None:
    preset = bound("srun -n 4 python train.py")
    assert measured(preset, run(world=4, samples=16)) == 16.0
    preset.read_baseline(run(world=4, samples=16, read_from=""))
    assert preset.layout({"mbs": 4, "checkpointing": False}).num_gpus == 4


@pytest.mark.parametrize("arguments", [{"steps": 2}, {"mbs_max": 0}, {"search": "tp"}, {"levers": "none+x"}])
def test_senseless_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        bound(**arguments)


def test_updates_of_many_tokens_count_as_much_as_they_hold() -> None:
    preset = bound("python train.py --output_dir out --bf16")
    log = run(world=1, samples=8, tokens=100, arguments={"per_device_train_batch_size": 8})
    # Every other update has three times the tokens and takes three times as long.
    lines, at_s, later = log.splitlines(), 100.0, []
    for line in lines:
        prefix, _, text = line.partition("zenithtune: ")
        event = json.loads(text)
        if event["event"] == "step" and event["step"] > 1:
            event["tokens"] = 300 if event["step"] % 2 else 100
            at_s += event["tokens"] / 100
            event["seconds"] = at_s
        later.append(f"{prefix}zenithtune: {json.dumps(event)}\n")
    own = preset.evaluator().measure("".join(later), {"parameters": {}})
    assert own.value == 4.0 and own.spread == 0.0, "8 samples of 200 tokens in 2 s"
    preset.read_baseline("".join(later))
    short = "".join(later[:-4])
    assert preset.evaluator().measure(short, {"parameters": {}}).value == 4.0, "whichever updates a run has"


def test_updates_that_take_the_same_time_whatever_they_hold_are_not_weighed() -> None:
    preset = bound("python train.py --output_dir out --bf16")
    log = run(world=1, samples=8, tokens=100, arguments={"per_device_train_batch_size": 8})
    later = re.sub(r'("step": \d*[13579],.*"tokens": )100', r"\g<1>300", log)
    assert later != log
    own = preset.evaluator().measure(later, {"parameters": {}})
    assert (own.value, own.spread) == (8.0, 0.0), "8 samples in a second, which the host decides"
