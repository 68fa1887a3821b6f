"""How the commands of Megatron-LM and ms-swift take Megatron's options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from zenith_tune.presets.megatron_lm.options import OPTIONS, SEQUENCE_PARALLEL, Wanted, with_options
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_or_set, placeholder_names
from zenith_tune.study.parameters import Value

_WORD = r"(?:^|[\s/;&|('\"=])"
_MEGATRON_SWIFT = re.compile(_WORD + r"(?:megatron\s+(?:sft|pt|rlhf)\b|swift[./]cli[./]_megatron\b)")
_SWIFT = re.compile(_WORD + r"swift\s")
_PRETRAIN_SCRIPT = re.compile(_WORD + r"pretrain_\w+\.py\b")
_FAKE_TRAINER = re.compile(_WORD + r"fake_megatron_train\.py\b")


def runs_megatron(command: str) -> bool:
    """Tell whether `command` names Megatron-SWIFT, a pretrain script of Megatron-LM, or the bundled fake trainer.

    >>> runs_megatron("NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B")
    True
    >>> runs_megatron("swift sft --model Qwen/Qwen3-8B")  # trains with transformers, and takes none of the options
    False
    """
    return any(pattern.search(command) for pattern in (_MEGATRON_SWIFT, _PRETRAIN_SCRIPT, _FAKE_TRAINER))


def runs_ms_swift(command: str) -> bool:
    """Tell whether `command` names ms-swift, whose switches take a value."""
    return bool(_MEGATRON_SWIFT.search(command) or _SWIFT.search(command))


def runs_pretrain_script(command: str) -> bool:
    """Tell whether `command` names one of Megatron-LM's own pretrain scripts."""
    return bool(_PRETRAIN_SCRIPT.search(command))


def edit_command(command: str, values: Mapping[str, Value], wanted: Wanted) -> str:
    """Fill the placeholders of `command`, such as {tp}, then set the options of the values that had none.

    What `wanted` has is set or taken away instead. A command that has a placeholder for every value is the user's own
    template, which may have no place for options: sequence parallelism is not added to it.
    """
    options = {name: option for name, option in OPTIONS.items() if name in values and option not in wanted}
    if options.keys() <= placeholder_names(command, values):
        wanted = {option: value for option, value in wanted.items() if option != SEQUENCE_PARALLEL}
    return with_options(ParsedCommand.of(fill_or_set(command, options, values)), wanted).text
