"""Jobs of MMEngine, by what 0.10.7 printed of a script on CPU with the options of a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.mmengine.command import find_run, with_options
from zenith_tune.presets.mmengine.job import printed_job, read_steps
from zenith_tune.presets.mmengine.preset import MMEnginePreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

COMMAND = "python tools/train.py resnet.py --work-dir work"
SCRIPT = 'from mmengine.runner import Runner\nparser.add_argument("--cfg-options", nargs="+", action=DictAction)\n'
LAUNCHER = """CONFIG=$1
GPUS=$2
NNODES=${NNODES:-1}
PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\
python -m torch.distributed.launch --nnodes=$NNODES --nproc_per_node=$GPUS \\
    $(dirname "$0")/train.py $CONFIG --launcher pytorch ${@:3}
"""
PRINTED = """    MMEngine: 0.10.7

Runtime environment:
    seed: 564729291
    Distributed launcher: none
    GPU number: {gpus}
------------------------------------------------------------

11/19 14:43:13 - mmengine - INFO - Config:
default_hooks = dict(
    checkpoint=None, logger=dict(interval=1, type='LoggerHook'))
default_scope = None
env_cfg = dict(cudnn_benchmark=False)
launcher = 'none'
log_processor = dict(window_size=1)
model = dict(type='Tiny')
optim_wrapper = dict(
    accumulative_counts={passes},
    optimizer=dict(lr=0.01, type='SGD'),
    type='OptimWrapper')
param_scheduler = None
train_cfg = dict(by_epoch=False, max_iters=8, val_interval=1000000000)
train_dataloader = dict(
    batch_size={batch},
    collate_fn=dict(type='default_collate'),
    dataset=dict(n=64, type='Points'),
    num_workers={workers},
    sampler=dict(shuffle=True, type='DefaultSampler'))
visualizer = None
work_dir = 'w'

11/19 14:43:14 - mmengine - INFO - Distributed training is not used, all SyncBatchNorm layers will be reverted.
11/19 14:43:14 - mmengine - INFO - Hooks will be executed in the following order:
before_run:
(VERY_HIGH   ) RuntimeInfoHook
"""
STEP = (
    "11/19 14:43:54 - mmengine - INFO - Epoch(train) [1][{}/8]  lr: 1.0000e-02  eta: 0:00:00  time: {}  "
    "data_time: 0.0085  memory: 388  loss: {}\n"
)


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text(SCRIPT)
    (tmp_path / "tools" / "dist_train.sh").write_text(LAUNCHER)


def log(times: tuple[float, ...] = (0.9, 0.5, 0.5, 0.5, 0.5), loss: str = "0.0337", **values: Any) -> str:
    shown = PRINTED.format(**{"gpus": 1, "passes": 2, "batch": 8, "workers": 2, **values})
    return shown + "".join(STEP.format(number, each, loss) for number, each in enumerate(times, start=1))


def live(text: str = "", **arguments: Any) -> MMEnginePreset:
    preset = MMEnginePreset(**arguments)
    preset.bind(COMMAND)
    preset.read_baseline(text or log())
    return preset


def point(preset: MMEnginePreset, **changes: Any) -> Params:
    own = preset.own_point(COMMAND)
    assert own is not None
    return {**own, **changes}


class TestContract(PresetContract):
    def make(self) -> MMEnginePreset:
        return live()

    def command(self) -> str:
        return COMMAND


def test_a_script_that_takes_options_for_its_configuration_is_recognised(tmp_path: Path) -> None:
    assert recognised_preset(COMMAND) == "mmengine"
    assert recognised_preset("torchrun --nproc-per-node 8 tools/train.py resnet.py --launcher pytorch") == "mmengine"
    (tmp_path / "other.py").write_text("import mmengine\n")
    assert find_run("python other.py resnet.py") is None and find_run("python tools/train.py --lr 1") is None


def test_a_launcher_script_passes_options_on_and_says_how_many_gpus() -> None:
    command = "bash tools/dist_train.sh resnet.py 8"
    preset = MMEnginePreset()
    preset.bind(command)
    text = preset.baseline_command(command)
    assert text.startswith(f"{command} --work-dir '{{trial_folder}}/work' --cfg-options train_cfg._delete_=true")
    run = find_run(command)
    assert run is not None and preset.resources(command).gpus_per_node == 8


def test_options_that_are_there_get_the_new_value_and_others_follow_them() -> None:
    command = f"{COMMAND} --cfg-options train_dataloader.batch_size=4 --amp"
    text = with_options(command, {"train_dataloader.batch_size": 8, "env_cfg.cudnn_benchmark": True})
    assert text == (
        f"{COMMAND} --cfg-options train_dataloader.batch_size=8 --amp --cfg-options env_cfg.cudnn_benchmark=true"
    )
    assert with_options(text, {"env_cfg.cudnn_benchmark": True}) == text


def test_the_configuration_is_what_the_run_prints() -> None:
    job = printed_job(log(gpus=4))
    assert job is not None
    assert (job.num_gpus, job.micro_batch, job.workers, job.global_batch) == (4, 8, 2, 64)
    assert job.values["train_dataloader.sampler.shuffle"] is True and job.values["work_dir"] == "w"
    assert printed_job("no configuration") is None
    odd = log().replace("default_scope = None", "custom = dict(f=lambda x: x, sizes=[(1, 2), (3, 4)], low=-1)")
    job = printed_job(odd)
    assert job is not None and job.values["custom.sizes"] == [(1, 2), (3, 4)] and job.values["custom.low"] == -1


def test_workers_are_searched_and_the_micro_batch_on_request() -> None:
    preset = live()
    assert preset.get_search_space()["workers"].grid(9) == [2, 4, 8, 16]
    assert preset.get_search_space()["mbs"].grid(9) == [8]
    preset = live(search="workers+mbs")
    assert 16 in preset.get_search_space()["mbs"].grid(9)
    values = ParsedCommand.of(preset.result_command(COMMAND, point(preset, mbs=16), Path("/study"))).overrides
    assert values == {"train_dataloader.batch_size": "16", "optim_wrapper.accumulative_counts": "1"}


def test_a_trial_makes_its_updates_without_schedule_checkpoint_validation_and_resuming() -> None:
    command = f"{COMMAND} --resume"
    preset = live(steps=10, search="mbs")
    for params, passes in ((None, 2), (point(preset, mbs=4), 4)):
        text = preset.baseline_command(command) if params is None else preset.apply_parameters(command, params)
        line = ParsedCommand.of(text)
        assert line.get("--work-dir") == "{trial_folder}/work" and not line.has("--resume")
        values = line.overrides
        assert values["train_cfg._delete_"] == "true" and values["train_cfg.max_iters"] == str(10 * passes)
        assert values["default_hooks.checkpoint"] == values["param_scheduler"] == "None"
    assert "train_cfg" not in preset.result_command(command, point(preset), Path("/study"))


def test_the_speed_is_that_of_whole_updates() -> None:
    preset = live()
    logged = read_steps(log())
    assert [step.seconds for step in logged.steps] == [1.8, 1.0, 1.0, 1.0, 1.0]
    assert logged.peak_bytes == 388 * 2**20
    measured = preset.evaluator().measure(log(), {"parameters": point(preset)})
    assert (measured.value, measured.unit) == (16.0, "samples/s")
    assert len(read_steps(log().replace("Epoch(train) [1]", "Iter(train) ")).steps) == 5


def test_a_run_with_other_values_has_failed() -> None:
    preset = live()
    for workers in (4, 8):
        metadata = {"parameters": point(preset, workers=workers)}
        text = log(workers=4).replace("    num_workers=4,", "    num_workers=4,\n    persistent_workers=True,")
        if workers == 4:
            assert preset.evaluator().measure(text, metadata).value > 0
            continue
        with pytest.raises(OtherSettingsError, match="num_workers=4, where 8 was asked for"):
            preset.evaluator().measure(text, metadata)


def test_a_loss_that_is_no_number_is_no_value() -> None:
    with pytest.raises(ValueError, match="nan"):
        live().evaluator().measure(log(loss="nan"), {"parameters": {}})


def test_levers_are_options_and_precision_is_on_request() -> None:
    preset = live(allow="amp")
    offered = {lever.name: lever.is_on_request for lever in preset.levers(COMMAND, point(preset))}
    assert offered == {"compile": False, "cudnn_benchmark": False, "amp": False}
    text = preset.result_command(COMMAND, {**point(preset), "amp": True}, Path("/study"))
    assert ParsedCommand.of(text).overrides == {
        "optim_wrapper.type": "AmpOptimWrapper",
        "optim_wrapper.dtype": "bfloat16",
    }


def test_what_is_not_known_yet_is_refused() -> None:
    preset = MMEnginePreset()
    preset.bind(COMMAND)
    assert preset.own_point(COMMAND) is None and preset.levers(COMMAND, {"workers": 0, "mbs": 1}) == []
    with pytest.raises(UsageError, match="by running it"):
        preset.read_baseline("")
    with pytest.raises(UsageError, match="has none"):
        preset.bind("python other.py")
