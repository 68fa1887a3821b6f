"""How ranks share a model: what a point asks of the Trainer, what its run must have been, and how it is planned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.presets.trainer.runs import OPTIONS, bound, run
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.trainer.preset import TrainerPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params
from zenith_tune.study.trial import Outcome, Trial

POINT: Params = {"mbs": 4, "checkpointing": False}
EVERY = ["none", "fsdp2", "fsdp2_no_reshard", "zero1", "zero2", "zero3"]


def live(command: str = OPTIONS, *, search: str = "default", **values: Any) -> TrainerPreset:
    """Return a preset that has seen a run of two ranks, with DeepSpeed installed unless said otherwise."""
    preset = bound(command, search=search, model="llama3-8b", seq=2048, cluster="h100x2")
    preset.read_baseline(run(**{"version": "5.22.0", "packages": ["deepspeed"], **values}))
    return preset


def choices(preset: TrainerPreset) -> list[Any]:
    return list(preset.get_search_space()["sharding"].grid(100))


def test_what_a_job_can_have_is_searched_on_gpus_and_elsewhere_on_request() -> None:
    assert choices(live()) == EVERY
    assert choices(live(packages=[])) == EVERY[:3]
    asked = live(search="default+sharding", compute=0)
    assert choices(asked) == ["none", *EVERY[3:]], "Accelerate runs no FSDP without a GPU"
    assert choices(live(version="4.57.1")) == ["none", *EVERY[3:]]
    assert live().own_point(OPTIONS) == {**POINT, "sharding": "none"}
    unsharded = (live(compute=0), live(search="mbs"), live(packages=[], compute=0), bound(search="default+sharding"))
    for other in unsharded:
        assert "sharding" not in other.get_search_space()
    alone = bound("python train.py --bf16 --output_dir o", search="default+sharding")
    alone.read_baseline(run(world=1, samples=4, version="5.22.0", packages=["deepspeed"]))
    assert "sharding" not in alone.get_search_space()
    with pytest.raises(UsageError):
        bound(search="sharded")


def test_a_point_reaches_the_script_by_its_options() -> None:
    preset = live()
    for name in EVERY:
        text = preset.apply_parameters(OPTIONS, {**POINT, "sharding": name})
        line = ParsedCommand.of(text)
        assert line.has("--fsdp") == name.startswith("fsdp2") and line.has("--deepspeed") == name.startswith("zero")
        assert not line.get("--fsdp"), "a word after it would be taken for an old strategy"
    config = json.loads(line.get("--deepspeed") or "")
    assert config["zero_optimization"]["stage"] == 3 and config["train_micro_batch_size_per_gpu"] == "auto"
    keeps = ParsedCommand.of(preset.apply_parameters(OPTIONS, {**POINT, "sharding": "fsdp2_no_reshard"}))
    assert json.loads(keeps.get("--fsdp_config") or "") == {"reshard_after_forward": False}


def test_a_point_reaches_a_script_without_options_by_the_hook() -> None:
    preset = live("torchrun --nproc-per-node 2 train.py", read_from="")
    asked = json.loads(preset.files({**POINT, "sharding": "fsdp2"})["hook/hooks.json"])["trainer"]["set"]
    assert asked["fsdp"] is True and "deepspeed" not in asked


def measured(preset: TrainerPreset, log: str, name: str) -> float:
    return preset.evaluator().measure(log, {"parameters": {**POINT, "sharding": name}}).value


def test_a_run_that_was_not_sharded_as_asked_for_has_failed() -> None:
    preset, log = live(), run()
    assert measured(preset, log, "none") == 8.0
    for name, wrapper, settings in (
        ("zero2", "DeepSpeedEngine", {"zero_optimization.stage": 2}),
        ("fsdp2", "FSDPModule", {"fsdp_version": 2, "reshard_after_forward": True}),
        ("fsdp2_no_reshard", "FSDPModule", {"fsdp_version": 2, "reshard_after_forward": False}),
    ):
        ran = log.replace("DistributedDataParallel", wrapper)
        arrived = ran.replace('"settings": {}', f'"settings": {json.dumps(settings)}')
        assert measured(preset, arrived, name) == 8.0
        for other in (
            log,
            ran.replace('"settings": {}', '"settings": {"zero_optimization.stage": 1, "fsdp_version": 1}'),
        ):
            with pytest.raises(OtherSettingsError):
                measured(preset, other, name)


def test_sharded_points_are_planned_with_less_memory() -> None:
    preset = live()
    subject = preset.subject(OPTIONS)
    layouts = [preset.layout({**POINT, "sharding": name}) for name in ("none", "zero1", "zero2", "zero3")]
    found = Planner(subject.model, subject.cluster, subject.job).evaluate(layouts)
    peaks = [each.memory_bytes for each in found]
    assert peaks == sorted(peaks, reverse=True) and peaks[-1] < 0.7 * peaks[0]


def test_what_does_not_fit_rules_out_what_shards_less_by_the_same_means() -> None:
    preset = live()
    failed: Params = {"mbs": 2, "checkpointing": True, "sharding": "zero2"}
    preset.observe(Trial(params=failed, outcome=Outcome.OOM))
    out = [name for name in EVERY if preset.prune({**failed, "mbs": 4, "sharding": name})]
    assert out == ["none", "zero1", "zero2"] and not preset.prune(failed)
