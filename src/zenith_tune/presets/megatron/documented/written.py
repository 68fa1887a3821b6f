"""What a command of preset megatron stands for, and how a point is written into it."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.presets.megatron.documented.command import FAKE_TRAINER, runs_ms_swift, runs_pretrain_script
from zenith_tune.presets.megatron.options import OPTIONS, RECOMPUTE, Wanted, with_options
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_or_set
from zenith_tune.study.parameters import Value

_ONES: Mapping[str, Value] = dict.fromkeys(("tp", "pp", "cp", "ep", "etp"), 1)
_FAKE_TRAINER_TAKES: Mapping[str, Value] = {
    **_ONES,
    "mbs": 1,
    "gbs": 16,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "vit_gradient_checkpointing": "true",
}
_MS_SWIFT_TAKES: Mapping[str, Value] = {**_ONES, "mbs": 1, "gbs": 16, "recompute_granularity": "selective"}


def own_values(command: str) -> dict[str, Value]:
    """Return the values that a command stands for, by its options and its program's defaults, as far as they are known.

    >>> own_values("python fake_megatron_train.py --micro-batch-size 2")["mbs"], own_values("bash train.sh")
    (2, {})
    """
    line = ParsedCommand.of(command)
    if runs_ms_swift(command):
        taken = dict(_MS_SWIFT_TAKES)
    elif runs_pretrain_script(command):
        # Unset, --expert-tensor-parallel-size is that of the dense layers, and nothing is recomputed.
        taken = {**_ONES, "etp": _value(line.get(OPTIONS["tp"]) or "1")}
        if line.has(RECOMPUTE[-1]):
            taken["recompute_granularity"] = "selective"
    elif FAKE_TRAINER.search(command):
        taken = dict(_FAKE_TRAINER_TAKES)
    else:
        return {}
    return taken | {name: _value(said) for name, option in OPTIONS.items() if (said := line.get(option)) is not None}


def _value(said: str) -> Value:
    return int(said) if said.isdecimal() and len(said) < 10 else said


def edit_command(command: str, values: Mapping[str, Value], wanted: Wanted) -> str:
    """Fill the placeholders of `command`, such as {tp}, then set the options of the values that had none.

    What `wanted` has is set or taken away instead.
    """
    options = {name: option for name, option in OPTIONS.items() if name in values and option not in wanted}
    return with_options(ParsedCommand.of(fill_or_set(command, options, values)), wanted).text


def describes_dense_model(command: str) -> bool:
    """Return whether a command describes its whole model by options, and none of them is about experts.

    >>> describes_dense_model("python pretrain_gpt.py --num-layers 16 --hidden-size 2048")
    True
    >>> describes_dense_model("bash train.sh")
    False
    """
    run = find_pretrain_run(command)
    if run is None or run.extended:
        return False
    args = MegatronArgs.of(run.arguments)
    return args.has("--num-layers") and args.has("--hidden-size") and not args.has("--num-experts")
