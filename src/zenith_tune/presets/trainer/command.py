"""A command that trains with the Trainer of transformers: how it is known, and where its arguments stand in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.accelerate_launch import PLAIN_TYPE, launched_backend
from zenith_tune.presets.shared.training_files import find_config, path_in_training_folder, read_yaml, yaml_text
from zenith_tune.presets.shared.trial_hook import starts_python
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.launchers import program_name
from zenith_tune.shell.options import Splice, apply_splices
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED
from zenith_tune.shell.target import splices_through
from zenith_tune.study.files import read_regular
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

PRESET = "preset trainer"
MICRO_BATCH = "per_device_train_batch_size"
ACCUMULATION = "gradient_accumulation_steps"
CHECKPOINTING = "gradient_checkpointing"
PACKING = "packing"
ATTENTION = "attn_implementation"
"""No field of TrainingArguments: an option of TRL, and of scripts that have it."""
MAX_LENGTH = "max_length"
"""Of TRL: where samples are cut, and how long a packed row is."""
GENERATION_BATCH = "generation_batch_size"
"""Of trainers that generate samples (GRPO, RLOO): the samples that are generated at once."""
STEPS_PER_GENERATION = "steps_per_generation"
"""In place of it: the passes of one rank that train on them; without either, those of one update."""
NUM_ITERATIONS = "num_iterations"
"""How often they are trained on."""
FILE_STEM = "trainer_arguments"
MAX_BYTES = 1 << 20
SUFFIXES = (".yaml", ".yml", ".json")
_TRL = ("sft", "dpo", "kto", "reward", "rloo", "grpo", "bco", "cpo", "orpo")

SHARED_NAMES = frozenset(
    (
        *("output_dir", MICRO_BATCH, "per_device_eval_batch_size", ACCUMULATION, "learning_rate", "weight_decay"),
        *("num_train_epochs", "lr_scheduler_type", "seed", "report_to", "push_to_hub", "hub_model_id"),
        "resume_from_checkpoint",
    )
)
"""Fields of TrainingArguments that scripts without a Trainer have options for as well."""
OWN_NAMES = frozenset(
    (
        *("do_train", "do_eval", "do_predict", "eval_strategy", "evaluation_strategy", "eval_steps", "eval_on_start"),
        *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "load_best_model_at_end"),
        *("logging_strategy", "logging_steps", "logging_first_step", "logging_dir", "disable_tqdm", "run_name"),
        *("max_steps", "max_grad_norm", "warmup_ratio", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon"),
        *("bf16", "fp16", "tf32", "bf16_full_eval", "optim", "optim_args", "torch_compile", "torch_compile_backend"),
        *(CHECKPOINTING, "gradient_checkpointing_kwargs", "use_liger_kernel", "auto_find_batch_size"),
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_drop_last"),
        *("remove_unused_columns", "label_names", "group_by_length", "ddp_find_unused_parameters", "ddp_timeout"),
        *("num_generations", GENERATION_BATCH, STEPS_PER_GENERATION),
        *("include_num_input_tokens_seen", "neftune_noise_alpha", "overwrite_output_dir", "fsdp", "fsdp_config"),
    )
)
"""Fields that only they have."""
NAMES = SHARED_NAMES | OWN_NAMES
BARE = frozenset({"fsdp"})
"""Switches that take a word for something else than a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentFile:
    """A YAML or JSON with arguments, as the command names it."""

    name: str
    values: Mapping[str, Any]

    @property
    def trial_name(self) -> str:
        return FILE_STEM + Path(self.name).suffix

    def having(self, changes: Mapping[str, Value]) -> str:
        values = {**self.values, **changes}
        is_json = self.name.endswith(".json")
        return json.dumps(values, indent=2, default=str) + "\n" if is_json else yaml_text(values)


def argument_file(command: str) -> ArgumentFile | None:
    """Return the file that is a script's only argument, where it holds fields of TrainingArguments."""
    target = ParsedCommand.of(command).found_target
    arguments = target.words[target.first :] if target else ()
    if len(arguments) != 1 or not arguments[0].value.endswith(SUFFIXES):
        return None
    found = read_argument_file(command, arguments[0].value)
    return found if found is not None and NAMES & found.values.keys() else None


def option_values(command: str) -> dict[str, Any]:
    """Return what a command gives for fields of TrainingArguments: its options, and those in the file of TRL."""
    line = ParsedCommand.of(command)
    named = line.get("--config") if is_trl(command) else None
    config = read_argument_file(command, named) if named else None
    found = {name: value for name, value in (config.values if config else {}).items() if name in NAMES}
    return found | {name: plain_argument(text) for name in NAMES if (text := line.get(f"--{name}")) is not None}


def plain_argument(text: str) -> Any:
    """Return the value of an option; a flag without one is on."""
    if text.lower() in ("", "true", "yes"):
        return True
    return False if text.lower() == "false" else int(text) if whole(text) is not None else text


def read_argument_file(command: str, name: str) -> ArgumentFile | None:
    """Return a file with keys and values; None of any other."""
    try:
        path = path_in_training_folder(command, name)
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        values = json.loads(text) if name.endswith(".json") else read_yaml(text)
    except (OSError, ValueError, RecursionError, UsageError):
        return None
    return ArgumentFile(name=name, values=values) if isinstance(values, dict) else None


def is_trl(command: str) -> bool:
    """Return whether a command is one of TRL's own, such as `trl sft`."""
    target = ParsedCommand.of(command).found_target
    if target is None:
        return False
    words = [program_name(word) or "" for word in target.words]
    return any(word == "trl" and after in _TRL for word, after in itertools.pairwise(words))


def recognises(command: str) -> bool:
    """Return whether a command trains with a Trainer by its text: its options or its file have fields of it."""
    if is_trl(command):
        return True
    line = ParsedCommand.of(command)
    kind = line.launcher.kind if line.launcher else None
    named = find_config(command)
    if not starts_python(command) or kind == DEEPSPEED or (named is not None and named.is_json):
        return False
    found = {name for name in NAMES if line.has(f"--{name}")}
    has_file = argument_file(command) is not None
    if kind == ACCELERATE:
        # A script in the manner of Accelerate's own, without a Trainer, has the other names as well.
        return (has_file or bool(found & OWN_NAMES)) and launched_backend(command) == PLAIN_TYPE
    return has_file or MICRO_BATCH in found or (len(found) > 1 and bool(found & OWN_NAMES))


def with_options(command: str, values: Mapping[str, Value]) -> str:
    """Return the command with options of the script, in place of those that it has."""
    options = {f"--{name}": value for name, value in values.items() if name not in BARE}
    text = ParsedCommand.of(command).set(options, keeps_names=True).text if options else command
    for name in BARE & values.keys():
        text = ParsedCommand.of(text).add_flag(f"--{name}").text
    return text


def with_file(command: str, path: str) -> str:
    """Return the command with another file in place of the script's only argument."""
    target = ParsedCommand.of(command).target
    word = target.words[target.first]
    splices = splices_through(target.layers, [Splice(word.start, word.end, path)])
    return apply_splices(command, splices)


may_be_for = starts_python
"""Any Python program may make a Trainer."""
