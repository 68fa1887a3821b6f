from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.presets.accelerate.logs import prepared, steps
from tests.study_tools import Witness
from zenith_tune import PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.evaluators.hooked_run import PLAIN
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.lightning.preset import LightningPreset
from zenith_tune.study.parameters import Params
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.testing import PresetContract

COMMAND = "python train.py"
SCRIPT = "import lightning as L\nL.Trainer().fit(model)\n"
SETTINGS = {"precision": "32-true", "compile": False, "matmul": "highest"}


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(passes: int = 2, samples: int = 16, settings: dict[str, Any] | None = None, **values: Any) -> str:
    """Return the log of two ranks on GPUs, with steps of a second."""
    report = {"settings": {**SETTINGS, **(settings or {})}, "accumulation": 2, "compute": 90, "deepspeed": True}
    ranks = "".join(prepared(f"host:{rank}", **{**report, **values}) for rank in range(2))
    return ranks + steps([1.0] * 6, passes=passes, samples=samples)


def live(log: str = "", **arguments: Any) -> LightningPreset:
    preset = LightningPreset(**arguments)
    preset.bind(COMMAND)
    preset.read_baseline(log or run())
    return preset


class TestContract(PresetContract):
    def make(self) -> LightningPreset:
        return live()

    def command(self) -> str:
        return COMMAND


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT,
        "import pytorch_lightning as pl\ntrainer = pl.Trainer()",
        "from lightning.pytorch import (\n    LightningModule,\n    Trainer,\n)",
        "from lightning.pytorch.cli import LightningCLI",
    ],
)
def test_both_names_of_the_package_are_recognised(script: Path, text: str) -> None:
    script.write_text(text)
    script.with_name("job.py").write_text(text)
    for command in (COMMAND, "torchrun --nproc-per-node 2 train.py --max_steps 9 --output_dir o", "srun python -m job"):
        assert recognised_preset(command) == "lightning"


@pytest.mark.parametrize(
    "text",
    [
        "# import lightning\nfrom transformers import Trainer",
        "import lightning as L\nL.Fabric()  # has no Trainer",
        "import lightning\nfrom transformers import Trainer, TrainingArguments",
        "import lightning.pytorch as pl\nfrom nemo import lightning as nl\nnl.Trainer()",
        "import lightning\nprint(1)",
    ],
)
def test_other_trainers_are_left_to_their_presets(script: Path, text: str) -> None:
    script.write_text(text)
    assert recognised_preset(COMMAND) == "trainer"
    assert not LightningPreset.recognises("python absent.py")


def hook(files: dict[str, str]) -> dict[str, Any]:
    [text] = [text for name, text in files.items() if name.endswith("hooks.json")]
    found: dict[str, Any] = json.loads(text)["lightning"]
    return found


def test_accumulation_keeps_the_global_batch_and_the_best_command_has_no_trial_in_it(tmp_path: Path) -> None:
    preset = live(search="mbs", steps=5)
    assert preset.get_search_space()["mbs"].grid(9) == [4, 1, 2, 8]
    assert preset.own_point(COMMAND) == {"mbs": 4} and preset.layout({"mbs": 8}).num_gpus == 2
    asked = {"micro_batch": 8, "accumulate_grad_batches": 1}
    assert hook(preset.files({"mbs": 8})) == {"set": asked, "steps": 5}
    assert hook(preset.result_files({"mbs": 8})) == {"set": asked}
    text = preset.result_command(COMMAND, {"mbs": 8}, tmp_path)
    assert f"PYTHONPATH={tmp_path}/lightning_arguments" in text and text.endswith(COMMAND)
    assert (preset.result_command(COMMAND, {"mbs": 4}, tmp_path), preset.result_files({"mbs": 4})) == (COMMAND, {})


def test_strategies_are_searched_where_the_job_is_plain_data_parallelism_on_gpus() -> None:
    space = live().get_search_space()
    assert set(space["strategy"].grid(9)) == {"ddp", "fsdp", *(f"deepspeed_stage_{stage}" for stage in (1, 2, 3))}
    assert live(run(deepspeed=False)).get_search_space()["strategy"].grid(9) == ["ddp", "fsdp"]
    for other in ({"wrapper": "FullyShardedDataParallel"}, {"compute": 0}):
        assert set(live(run(**other)).get_search_space()) == {"mbs"}
    assert hook(live().files({"mbs": 4, "strategy": "fsdp"}))["set"] == {"strategy": "fsdp"}


def test_a_batch_that_trials_may_not_change_stays() -> None:
    assert live(run(batch_norm=True)).get_search_space()["mbs"].grid(9) == [4]
    assert len(live(run(batch_norm=True), search="mbs").get_search_space()["mbs"].grid(9)) == 4
    unknown = live(run(batch_sizes=[]))
    assert unknown.get_search_space()["mbs"].grid(9) == [1]
    assert hook(unknown.files({"mbs": 1, "strategy": "ddp"}))["set"] == {}


def measured(preset: LightningPreset, log: str, params: Params | None = None) -> float:
    return preset.evaluator().measure(log, {"parameters": params or {}}).value


def test_what_did_not_arrive_fails_the_trial() -> None:
    preset = live()
    point: Params = {"mbs": 2, "strategy": "fsdp", "bf16": True}
    assert measured(preset, run()) == 16.0
    arrived: dict[str, Any] = {
        "passes": 4,
        "wrapper": "FullyShardedDataParallel",
        "settings": {"precision": "bf16-mixed"},
    }
    assert measured(preset, run(**arrived), point) == 16.0
    others: tuple[dict[str, Any], ...] = ({"passes": 2}, {"samples": 32}, {"wrapper": PLAIN}, {"settings": {}})
    for other in others:
        with pytest.raises(OtherSettingsError):
            measured(preset, run(**{**arrived, **other}), point)
    with pytest.raises(ValueError, match="--space"):
        measured(preset, "hello\n")
    with pytest.raises(UsageError):
        live("hello\n")


def test_a_study_that_may_not_run_the_script_is_refused_before_any_trial(tmp_path: Path) -> None:
    heard = Witness()
    tuner = PresetTuner(COMMAND, output_dir=tmp_path / "out", baseline=False, listener=heard)
    with pytest.raises(UsageError, match="--no-baseline"):
        tuner.optimize()
    assert tuner.config.preset_name == "lightning" and not heard.trials


def test_levers_that_change_the_numerics_are_on_request() -> None:
    offered = {lever.name: lever for lever in live(allow="bf16").levers(COMMAND, {"mbs": 4})}
    assert offered.keys() == {"compile", "allocator", "tf32", "bf16"}
    assert [offered[name].is_on_request for name in ("compile", "tf32", "bf16")] == [False, True, False]
    assert "compile" not in {each.name for each in live().levers("", {"mbs": 4, "strategy": "deepspeed_stage_1"})}
    assert live(run(settings={"compile": True, "precision": "bf16-mixed"})).levers("", {"mbs": 4})[1:] == []


def test_what_is_larger_than_a_batch_that_did_not_fit_costs_no_trial() -> None:
    preset = live(search="mbs")
    preset.observe(Trial(params={"mbs": 4}, outcome=Outcome.OOM))
    assert [preset.explain({"mbs": size}) is not None for size in (2, 4, 8)] == [False, False, True]


def test_the_live_model_is_planned() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
    event = {"event": "model", "config": config, "parameters": 90_432, "trained": 90_432, "models": 1}
    event |= {"input": {"name": "0", "shape": [4, 32]}, "gpu": "NVIDIA H100 80GB HBM3", "blocks": None}
    subject = live(run() + f"zenithtune: {json.dumps(event)}\n").subject(COMMAND)
    assert (subject.model.num_layers, subject.job.seq_len, subject.cluster.num_gpus) == (2, 32, 2)
    with pytest.raises(UsageError):
        live(run(settings={"precision": "bf16-true"}) + f"zenithtune: {json.dumps(event)}\n").subject(COMMAND)
