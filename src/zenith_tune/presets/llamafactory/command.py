"""Training by LLaMA-Factory (0.9.5): its YAML with overrides, and Hugging Face's Trainer inside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from zenith_tune.presets.trainer.command import ACCUMULATION, ATTENTION, CHECKPOINTING, MICRO_BATCH, with_options
from zenith_tune.presets.trainer.dialect import Dialect, by_options, by_overrides, file_values, program_words
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

PROGRAMS = ("llamafactory-cli", "lmf", "llamafactory.cli")
SCRIPT = "train.py"
OWN_KEYS = {"stage", "finetuning_type"}
"""What its files have, and those of other programs do not: `torchrun src/train.py F.yaml` is one of its commands."""
OTHER_ENGINES = ("USE_MCA", "USE_V1", "USE_MEGATRON_BRIDGE", "USE_RAY")
"""Variables by which it trains without Hugging Face's Trainer, or starts it elsewhere."""
KEYS = {
    CHECKPOINTING: "disable_gradient_checkpointing",
    ATTENTION: "flash_attn",
    "use_liger_kernel": "enable_liger_kernel",
    **{
        name: name
        for name in (
            *(MICRO_BATCH, ACCUMULATION, "optim", "torch_compile", "bf16", "tf32", "ddp_find_unused_parameters"),
            *("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
        )
    },
}


def recognises(command: str) -> bool:
    """Return whether a command trains by LLaMA-Factory."""
    program, arguments = program_words(command)
    if any(_variable(command, name) for name in OTHER_ENGINES):
        return False
    return (
        arguments[:1] == ["train"] if program in PROGRAMS else program == SCRIPT and _read(command).keys() >= OWN_KEYS
    )


def _variable(command: str, name: str) -> str:
    line = ParsedCommand.of(command)
    own = {} if line.needs_shell else line.assignments()
    return own.get(name) or os.environ.get(name, "")


def _read(command: str) -> dict[str, Any]:
    keys = {**KEYS, **{key: key for key in OWN_KEYS}}
    return by_options(command, keys) if file_values(command) is None else by_overrides(command)


def _write(command: str, keys: Mapping[str, Value]) -> str:
    """Return the command with overrides behind its file, or with options where it has none."""
    if file_values(command) is None:
        return with_options(command, keys)
    return ParsedCommand.of(command).override(keys).text


def _num_processes(command: str) -> int | None:
    """Return the ranks that it starts by torchrun itself."""
    per_node, nodes = whole(_variable(command, "NPROC_PER_NODE")), whole(_variable(command, "NNODES") or "1")
    return per_node * nodes if per_node and nodes else None


LLAMA_FACTORY = Dialect(
    keys=KEYS,
    read=_read,
    write=_write,
    defaults={CHECKPOINTING: True},
    inverted=frozenset({CHECKPOINTING}),
    words={ATTENTION: {"flash_attention_2": "fa2", "sdpa": "sdpa", "eager": "disabled"}},
    unseen=frozenset({"use_liger_kernel"}),
    num_processes=_num_processes,
)
