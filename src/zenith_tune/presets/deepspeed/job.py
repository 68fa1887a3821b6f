"""What a command and its DeepSpeed configuration say of the job: the batch, the ranks, the model, the precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zenith_tune.describe.deepspeed_config import (
    ACCUMULATION,
    AUTO,
    BATCH,
    MICRO_BATCH,
    DsConfig,
    read_ds_config,
    shown_json,
)
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import divisors
from zenith_tune.presets.arguments import MOST, FrameworkArguments
from zenith_tune.presets.deepspeed.autotuning import Autotuning
from zenith_tune.presets.deepspeed.command import PRESET, asked_tuning, refuse_two_configs
from zenith_tune.presets.shared.launched_gpus import job_gpus, started_gpus
from zenith_tune.presets.shared.subject import MODEL_OPTIONS, SEQUENCE_OPTIONS, TRAINER_DEFAULT_BATCH
from zenith_tune.presets.shared.training_files import find_config, path_in_training_folder
from zenith_tune.shell import ParsedCommand

TRAINER_BATCH = {MICRO_BATCH: "--per_device_train_batch_size", ACCUMULATION: "--gradient_accumulation_steps"}
"""What the Hugging Face Trainer calls the parts of the batch."""
TRAINER_OPTIONS = (*TRAINER_BATCH.values(), "--output-dir")
_OPTION = re.compile(r"(?:--?)?[A-Za-z0-9_][A-Za-z0-9_-]*")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedArguments(FrameworkArguments):
    """What preset deepspeed takes."""

    gbs: int | None = None
    seq: int | None = None
    config: str | None = None
    """The path of the JSON, where the command does not say it."""
    metric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedJob:
    """A job of DeepSpeed; its own configuration stays as it is."""

    config: DsConfig
    num_gpus: int
    num_ranks: int
    global_batch: int
    own_micro_batch: int | None
    batch_options: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """The script's options for parts of the batch, by the keys that the configuration has for them."""
    is_trainer: bool = False
    """Whether the Hugging Face Trainer fills what the configuration leaves "auto"."""
    precision: str = "fp32"
    model: str | None = None
    seq_len: int | None = None
    recomputes: bool = False
    tuning: Autotuning = field(default_factory=lambda: Autotuning(values={}))
    """What the configuration says for DeepSpeed's own autotuner."""
    stated_batch: int
    """The global batch before the limits of that section."""

    @property
    def rank_batch(self) -> int:
        return self.global_batch // self.num_ranks

    @property
    def is_limited(self) -> bool:
        """Whether that section limits the global batch, also of the user's own command."""
        return self.global_batch != self.stated_batch


def read_job(command: str, given: DeepSpeedArguments) -> DeepSpeedJob:
    """Read a command and its configuration; what is missing is an error of one line with a hint."""
    asked = asked_tuning(command)
    refuse_two_configs(command)
    config, line = read_ds_config(_config_path(command, given)), ParsedCommand.of(command)
    refuse_listed_batch(config)
    tuning = Autotuning.of(config, asked)
    num_gpus = job_gpus(PRESET, given.n_gpus, started_gpus(command), option="--num_gpus")
    model_ranks = tuning.get("mp_size") or 1
    if num_gpus % model_ranks:
        problem = f"autotuning.mp_size must divide the GPUs, but got {model_ranks} and {num_gpus}"
        raise UsageError(f"{problem}: correct it in {config.source}")
    is_trainer = _is_trainer(line, config)
    options = _batch_options(config, tuning, is_trainer)
    num_ranks = num_gpus // model_ranks
    own = config.count(MICRO_BATCH) or line.count(options.get(MICRO_BATCH))
    if own is None and is_trainer:
        own = TRAINER_DEFAULT_BATCH
    stated = _global_batch(config, line, options, own, num_ranks, given)
    global_batch = stated if given.gbs else _limited(stated, tuning, num_ranks)
    own = own or _left_over(config, stated, num_ranks)
    if global_batch != stated:  # the nearest that the smaller batch has room for
        own = max(size for size in divisors(global_batch // num_ranks) if size <= (own or stated))
    return DeepSpeedJob(
        config=config,
        num_gpus=num_gpus,
        num_ranks=num_ranks,
        global_batch=global_batch,
        own_micro_batch=own,
        batch_options=options,
        is_trainer=is_trainer,
        precision=_precision(config, line),
        model=given.model or next((value for name in MODEL_OPTIONS if (value := line.get(name))), None),
        seq_len=given.seq or line.count(*SEQUENCE_OPTIONS),
        recomputes=line.is_on("--gradient-checkpointing"),
        tuning=tuning,
        stated_batch=stated,
    )


def _limited(batch: int, tuning: Autotuning, num_ranks: int) -> int:
    """Return the nearest batch within the limits that the section for DeepSpeed's autotuner sets."""
    least, most = tuning.get("min_train_batch_size") or 1, tuning.get("max_train_batch_size") or MOST
    limited = max(min(batch, most // num_ranks * num_ranks), -(-least // num_ranks) * num_ranks)
    if not least <= limited <= most:
        problem = "autotuning must allow a global batch that is a multiple of the data-parallel ranks"
        raise UsageError(f"{problem}, but {least} to {most} has no multiple of {num_ranks}: change these limits")
    return limited


def refuse_listed_batch(config: DsConfig) -> None:
    """Refuse a list where the global batch, which stays the same, or what follows from it belongs."""
    for keys in (BATCH, ACCUMULATION):
        if isinstance(value := config.get(keys), list):
            problem = (
                f"{keys[0]} must be one number, because the global batch is fixed and accumulation follows from it"
            )
            raise UsageError(
                f"{config.source}: {problem}, but got {shown_json(value)}", hint="write one number, or leave it out"
            )


def _config_path(command: str, given: DeepSpeedArguments) -> Path:
    named = find_config(command)
    if given.config is not None:
        return Path(given.config)
    if named is None:
        problem = (
            f"{PRESET} needs a command that names its JSON by --deepspeed or --deepspeed_config, but finds neither"
        )
        raise UsageError(problem, hint="add it, or write {ds_config} in its place and give --args config=ds.json")
    return path_in_training_folder(command, named.path)


def _is_trainer(line: ParsedCommand, config: DsConfig) -> bool:
    """Return whether the Trainer runs it: by its arguments, or because only it fills a batch that is left "auto"."""
    left = any(config.is_auto(keys) for keys in (BATCH, MICRO_BATCH, ACCUMULATION))
    return left or any(line.has(option) for option in TRAINER_OPTIONS)


def _batch_options(config: DsConfig, tuning: Autotuning, is_trainer: bool) -> dict[tuple[str, ...], str]:
    """Return the script's own options for the batch; a mapping in the section for DeepSpeed's autotuner comes first."""
    mappings = tuning.get("arg_mappings")
    if mappings is None:
        return dict(TRAINER_BATCH) if is_trainer else {}
    known = {keys[0]: keys for keys in (MICRO_BATCH, ACCUMULATION, BATCH)}
    # These names become part of a shell's command: what is no name would be run by it.
    names = mappings.values() if isinstance(mappings, dict) else [None]
    if not all(isinstance(name, str) and _OPTION.fullmatch(name) for name in names):
        problem = "autotuning.arg_mappings must name an option such as --batch_size for each key"
        raise UsageError(f"{config.source}: {problem}, but got {shown_json(mappings)}: correct it")
    return {known[key]: "--" + str(option).lstrip("-") for key, option in mappings.items() if key in known}


def _global_batch(
    config: DsConfig,
    line: ParsedCommand,
    options: Mapping[tuple[str, ...], str],
    own: int | None,
    num_ranks: int,
    given: DeepSpeedArguments,
) -> int:
    accumulation = config.count(ACCUMULATION) or line.count(options.get(ACCUMULATION)) or 1
    found = given.gbs or config.count(BATCH) or line.count(options.get(BATCH))
    if found is None and own is not None:
        found = own * accumulation * num_ranks
    if found is None:
        problem = (
            f"{PRESET} must know the global batch, but {config.source} has neither train_batch_size nor a micro-batch"
        )
        raise UsageError(problem, hint="add train_batch_size, or give --gbs 256")
    if found % num_ranks or found > MOST:
        problem = f"the global batch must be a multiple of the {num_ranks} data-parallel ranks, but got {found}"
        raise UsageError(problem, hint=f"give --gbs {max(found // num_ranks, 1) * num_ranks}, or change the JSON")
    return found


def _left_over(config: DsConfig, global_batch: int, num_ranks: int) -> int | None:
    """Return the micro-batch that DeepSpeed makes of the rest, where the configuration has the global batch without."""
    parts = num_ranks * (config.count(ACCUMULATION) or 1)
    has_rest = config.get(MICRO_BATCH) is None and config.count(BATCH) == global_batch
    return global_batch // parts if has_rest and not global_batch % parts else None


def _precision(config: DsConfig, line: ParsedCommand) -> str:
    """Return bf16, fp16 or fp32; what is "auto" follows the Trainer's arguments."""
    for name, sections in {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16",)}.items():
        for section in sections:
            enabled = config.get((section, "enabled"))
            if enabled is True or (enabled == AUTO and line.is_on(f"--{name}")):
                return name
    return "fp32"
