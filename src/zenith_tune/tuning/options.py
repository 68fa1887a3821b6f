"""The options of a study, each stated once: the command line, the Python API and the record are made from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import UsageError

if TYPE_CHECKING:  # heavy, and only named here: `zenithtune optimize --help` reads these fields
    from zenith_tune.evaluators.base import TuningEvaluator
    from zenith_tune.evaluators.early_stop import EarlyStop
    from zenith_tune.presets.base import TuningPreset
    from zenith_tune.runners.base import Runner
    from zenith_tune.strategies.base import TuningStrategy
    from zenith_tune.tuning.events import StudyListener

Pairs = Mapping[str, Any] | str
"""Names and values, as a mapping or as `k=v,k=v`."""
Axes = Mapping[str, Any] | Sequence[str] | str
"""Axes of a search space, as a mapping or as `name=values`, one or several."""
Names = Sequence[str] | str


OF_THE_JOB = {name: name for name in ("cluster", "model", "gbs", "seq", "topology")} | {"gpus": "n_gpus"}
"""The options that are arguments of a preset, with their names there."""
JOB, SEARCH, BUDGET, PLACE, OUTPUT = "Job", "Search", "Budget", "Where it runs", "Output"
"""The groups of options, in the order of `--help`."""


def option(help: str, default: Any = None, **written: Any) -> Any:
    """Return a field with its help, and how the command line writes it where its type does not say.

    `metavar`, `choices`, `at_least` (a bound), `off` (the opposite of a flag), `group` and `is_rare` (listed by
    `--help-all` alone) are what `cli/options.py` reads.
    """
    return field(default=default, metadata={"help": help, **written})


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of a study, by the names and with the defaults that `zenithtune optimize` has for them.

    The first type of a field is what the command line gives it.
    """

    preset: str | TuningPreset | None = option(
        "The framework: megatron-lm, deepspeed, accelerate, trainer, torchtitan ... "
        "[default: recognised from the command]",
        metavar="NAME",
        group=JOB,
    )
    args: Pairs | None = option("The preset's arguments, e.g. n_gpus=8,gbs=16.", group=JOB)
    cluster: str | None = option(
        "The GPUs, e.g. h100x64, or a file. [default: this machine]", metavar="NAME|PATH", group=JOB
    )
    model: str | None = option(
        "The model, in place of what the command says: a name of the catalog, a config.json or a Hugging Face id.",
        metavar="NAME|PATH",
        group=JOB,
    )
    gpus: int | None = option("GPUs of the job, where the command does not say it.", at_least=1, metavar="N", group=JOB)
    gbs: int | None = option(
        "Global batch, in place of the one that the command has.", at_least=1, metavar="N", group=JOB
    )
    seq: int | None = option("Sequence length, where the command does not say it.", at_least=1, metavar="N", group=JOB)
    topology: Path | str | None = option(
        "What `nvidia-smi topo -m` or `nvlink -s` prints on a node: how the GPUs of each node are linked.",
        metavar="FILE",
        group=JOB,
        is_rare=True,
    )
    strategy: str | TuningStrategy | None = option(
        "How to search: guided, zero-progressive, grid, random, optuna ... [default: what suits the preset]",
        metavar="NAME",
        group=SEARCH,
    )
    space: Axes | None = option(
        "Tune a program of your own: bs=4,8,16 or lr=log:1e-5..1e-3 for {bs} or --bs.", metavar="NAME=VALUES", group=JOB
    )
    allow: Names = option(
        "Also test a performance setting that changes the numerics, such as fp8 or bf16_grads.",
        (),
        metavar="NAME",
        group=JOB,
    )
    strategy_args: Pairs | None = option("The strategy's arguments, e.g. seed=1.", group=SEARCH, is_rare=True)
    evaluator: str | TuningEvaluator | None = option(
        "How to read a trial's value: megatron, deepspeed, accelerate, trainer, torchtitan, regex ... "
        "[default: the preset's]",
        metavar="NAME",
        group=SEARCH,
        is_rare=True,
    )
    evaluator_args: Pairs | None = option("The evaluator's arguments.", group=SEARCH, is_rare=True)
    objective: str | None = option(
        "What to optimize: tokens_per_s, step_time, tflops, samples_per_s or throughput where the evaluator knows it, "
        "json:KEY, or a pattern with exactly one group. [default: tokens_per_s where batch and sequence are known]",
        metavar="NAME|REGEX",
        group=SEARCH,
    )
    maximize: bool | None = option(
        "Which way the number of --objective is better. [default: more of a rate such as tokens/s, less of all else]",
        off="--minimize",
        group=SEARCH,
        is_rare=True,
    )
    select: str | None = option(
        "Which of the numbers of --objective counts. [default: steady, the median of a run without its warm-up; last "
        "for a loss or an accuracy]",
        choices=("steady", "last", "first", "min", "max", "mean", "median"),
        group=SEARCH,
        is_rare=True,
    )
    n_trials: int | None = option(
        "Budget: trials, and the runs that repeat one to confirm it. [default: as many as the strategy needs]",
        at_least=1,
        metavar="N",
        group=BUDGET,
    )
    patience: str = option(
        "How thorough the search is: quick weighs what it costs against 1 hour of training and confirms nothing, "
        "normal against 8 hours, thorough against the whole training (at least 8 hours), and confirms every gain.",
        "normal",
        choices=("quick", "normal", "thorough"),
        group=SEARCH,
    )
    train_hours: float | None = option(
        "How long the training itself will run: the search ends when another trial would cost more than it saves. "
        "[default: by --patience]",
        metavar="H",
        group=BUDGET,
    )
    gpu_hours: float | None = option("Budget of GPU time, over all trials.", metavar="H", group=BUDGET)
    max_hours: float | None = option("End the study after H hours.", metavar="H", group=BUDGET)
    price: float | None = option(
        "Price of a GPU-hour, to show what the study costs.", metavar="USD", group=BUDGET, is_rare=True
    )
    max_memory: str | float | None = option(
        "The most GPU memory that the best layout may use, e.g. 70GiB.", metavar="SIZE", group=BUDGET
    )
    headroom: str | float | None = option(
        "GPU memory that the best layout must leave free. [default: 0.2%]", metavar="PCT", group=BUDGET, is_rare=True
    )
    confirm: bool = option(
        "Run the best layout and your own command once more where a gain is in doubt.",
        True,
        off="--no-confirm",
        group=SEARCH,
        is_rare=True,
    )
    repeats: int = option("Run each point N times.", 1, at_least=1, metavar="N", group=SEARCH, is_rare=True)
    timeout: float | None = option("End a trial after S seconds.", metavar="S", group=BUDGET, is_rare=True)
    timeout_dynamic: bool = option(
        "End a trial once it can no longer beat the best one, if time or speed is measured.",
        False,
        group=BUDGET,
        is_rare=True,
    )
    timeout_margin: float | None = option(
        "--timeout-dynamic: the limit, as a multiple of the best trial's duration. [default: 1.5]",
        metavar="X",
        group=BUDGET,
        is_rare=True,
    )
    early_stop: bool | EarlyStop | None = option(
        "End a trial once its next iteration costs more than it is worth.",
        True,
        off="--no-early-stop",
        group=SEARCH,
        is_rare=True,
    )
    early_precision: float | None = option(
        "--early-stop: how precisely a value must be known, in percent. [default: as precisely as is worth it]",
        metavar="PCT",
        group=SEARCH,
        is_rare=True,
    )
    whole_steps: bool = option(
        "Make every step with the whole global batch: no run begins with steps of fewer micro-batches.",
        False,
        group=SEARCH,
        is_rare=True,
    )
    baseline: bool = option("Run your own command first.", True, off="--no-baseline", group=SEARCH, is_rare=True)
    output_dir: Path | str | None = option(
        "Where studies are kept. [default: zenithtune-out]", metavar="PATH", group=OUTPUT
    )
    study_name: str | None = option("The study's name. [default: preset and time]", metavar="NAME", group=OUTPUT)
    db: str | Path | None = option(
        "The study's database, a file or postgresql://... [default: OUTPUT_DIR/studies.db; with a file, its folder is "
        "the default of --output-dir]",
        metavar="PATH|URL",
        group=OUTPUT,
        is_rare=True,
    )
    resume: bool = option("Continue a study: the one named, or else the last one.", False, group=OUTPUT)
    retry_failed: bool = option(
        "--resume: run the trials again that ended in an error.", False, group=OUTPUT, is_rare=True
    )
    runner: str | Runner | None = option(
        "Where trials run: local, slurm, kubernetes, ray or hostfile. [default: local]",
        metavar="NAME",
        group=PLACE,
        is_rare=True,
    )
    runner_args: Pairs | None = option("The runner's arguments, e.g. grace_s=10.", group=PLACE, is_rare=True)
    slurm: Pairs | None = option(
        "Run each trial as a Slurm job: partition=...,nodes=2,gpus_per_node=8,time=00:20:00", group=PLACE
    )
    kubernetes: Pairs | None = option(
        "Run each trial as a TrainJob or Job: manifest=trainjob.yaml,nodes=2,gpus_per_node=8,queue=...", group=PLACE
    )
    ray_address: str | None = option(
        "Run each trial on a Ray cluster: auto, or HOST:PORT.", metavar="ADDRESS", group=PLACE, is_rare=True
    )
    hostfile: str | Path | None = option(
        "Run trials over the hosts of a file: one line `name slots=8` each.", metavar="PATH", group=PLACE
    )
    parallel: str | int = option(
        "How many trials run side by side; auto: as many as there are GPUs for.", "1", metavar="auto|N", group=PLACE
    )
    gpus_per_trial: int | None = option(
        "GPUs per node that a trial needs. [default: what the command starts]",
        at_least=1,
        metavar="N",
        group=PLACE,
        is_rare=True,
    )
    nodes_per_trial: int | None = option(
        "Nodes that a trial needs. [default: what the command starts]",
        at_least=1,
        metavar="N",
        group=PLACE,
        is_rare=True,
    )
    max_duplicates: int = option(
        "Stop random or optuna after N repeated points in a row.",
        100,
        at_least=1,
        metavar="N",
        group=SEARCH,
        is_rare=True,
    )
    max_prunes: int = option(
        "Stop random or optuna after N pruned points in a row.",
        1000,
        at_least=1,
        metavar="N",
        group=SEARCH,
        is_rare=True,
    )
    notify: str | None = option(
        "Post the result to a webhook when the study ends.", metavar="URL", group=OUTPUT, is_rare=True
    )
    dump_env: bool = option("Record the environment, with secrets masked.", False, group=OUTPUT, is_rare=True)
    listener: StudyListener | Callable[[], StudyListener] | None = None
    """What reports the study, or what makes it when the study starts: `StudyListener()` for silence.

    None: the terminal, or a notebook's output.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata.get("at_least")
            if value == "":
                raise UsageError(f"{flag(each.name)} must not be empty", hint="give a value, or leave it out")
            choices = each.metadata.get("choices")
            if choices is not None and value is not None and value not in choices:
                raise UsageError(f"{flag(each.name)} must be one of {', '.join(choices)}, but got {value!r}")
            if value is not None and least is not None and value < least:
                raise UsageError(f"{flag(each.name)} must be at least {least}, but got {value}")
        if self.retry_failed and not self.resume:
            raise UsageError("--retry-failed goes with --resume", hint="give both")


def flag(name: str) -> str:
    """Return a field as the command line spells it.

    >>> flag("n_trials")
    '--n-trials'
    """
    return "--" + name.replace("_", "-")
