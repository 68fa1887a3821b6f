"""The options of a study, each stated once: the command line, the Python API and the record are made from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
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


_GROUPS = [partial(option, group=group) for group in (JOB, SEARCH, BUDGET, PLACE, OUTPUT)]
job, search, budget, place, output = _GROUPS
rare_job, rare_search, rare_budget, rare_place, rare_output = (partial(group, is_rare=True) for group in _GROUPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of a study, by the names and with the defaults that `zenithtune optimize` has for them.

    The first type of a field is what the command line gives it.
    """

    preset: str | TuningPreset | None = job(
        "The framework: megatron-lm, deepspeed, accelerate, trainer, torchtitan ... "
        "[default: recognised from the command]",
        metavar="NAME",
    )
    args: Pairs | None = job("The preset's arguments, e.g. n_gpus=8,gbs=16.")
    cluster: str | None = job("The GPUs, e.g. h100x64, or a file. [default: this machine]", metavar="NAME|PATH")
    model: str | None = job(
        "The model, in place of what the command says: a name of the catalog, a config.json or a Hugging Face id.",
        metavar="NAME|PATH",
    )
    gpus: int | None = job("GPUs of the job, where the command does not say it.", at_least=1, metavar="N")
    gbs: int | None = job("Global batch, in place of the one that the command has.", at_least=1, metavar="N")
    seq: int | None = job("Sequence length, where the command does not say it.", at_least=1, metavar="N")
    topology: Path | str | None = rare_job(
        "What `nvidia-smi topo -m` or `nvlink -s` prints on a node: how the GPUs of each node are linked.",
        metavar="FILE",
    )
    strategy: str | TuningStrategy | None = search(
        "How to search: guided, zero-progressive, grid, random, optuna ... [default: what suits the preset]",
        metavar="NAME",
    )
    space: Axes | None = job(
        "Tune a program of your own: bs=4,8,16 or lr=log:1e-5..1e-3 for {bs} or --bs.", metavar="NAME=VALUES"
    )
    allow: Names = job(
        "Also test a performance setting that changes the numerics, such as fp8 or bf16_grads.", (), metavar="NAME"
    )
    strategy_args: Pairs | None = rare_search("The strategy's arguments, e.g. seed=1.")
    evaluator: str | TuningEvaluator | None = rare_search(
        "How to read a trial's value: megatron, deepspeed, accelerate, trainer, torchtitan, regex ... "
        "[default: the preset's]",
        metavar="NAME",
    )
    evaluator_args: Pairs | None = rare_search("The evaluator's arguments.")
    objective: str | None = search(
        "What to optimize: tokens_per_s, step_time, tflops, samples_per_s or throughput where the evaluator knows it, "
        "json:KEY, or a pattern with exactly one group. [default: tokens_per_s where batch and sequence are known]",
        metavar="NAME|REGEX",
    )
    maximize: bool | None = rare_search(
        "Which way the number of --objective is better. [default: more of a rate such as tokens/s, less of all else]",
        off="--minimize",
    )
    select: str | None = rare_search(
        "Which of the numbers of --objective counts. [default: steady, the median of a run without its warm-up; last "
        "for a loss or an accuracy]",
        choices=("steady", "last", "first", "min", "max", "mean", "median"),
    )
    n_trials: int | None = budget(
        "Budget: trials, and the runs that repeat one to confirm it. [default: as many as the strategy needs]",
        at_least=1,
        metavar="N",
    )
    patience: str = search(
        "How thorough the search is: quick weighs what it costs against 1 hour of training and confirms nothing, "
        "normal against 8 hours, thorough against the whole training (at least 8 hours), and confirms every gain.",
        "normal",
        choices=("quick", "normal", "thorough"),
    )
    train_hours: float | None = budget(
        "How long the training itself will run: the search ends when another trial would cost more than it saves. "
        "[default: by --patience]",
        metavar="H",
    )
    gpu_hours: float | None = budget("Budget of GPU time, over all trials.", metavar="H")
    max_hours: float | None = budget("End the study after H hours.", metavar="H")
    price: float | None = rare_budget("Price of a GPU-hour, to show what the study costs.", metavar="USD")
    max_memory: str | float | None = budget(
        "The most GPU memory that the best layout may use, e.g. 70GiB.", metavar="SIZE"
    )
    headroom: str | float | None = rare_budget(
        "GPU memory that the best layout must leave free. [default: 0.2%]", metavar="PCT"
    )
    confirm: bool = rare_search(
        "Run the best layout and your own command once more where a gain is in doubt.", True, off="--no-confirm"
    )
    repeats: int = rare_search("Run each point N times.", 1, at_least=1, metavar="N")
    timeout: float | None = rare_budget("End a trial after S seconds.", metavar="S")
    timeout_dynamic: bool = rare_budget(
        "End a trial once it can no longer beat the best one, if time or speed is measured.", False
    )
    timeout_margin: float | None = rare_budget(
        "--timeout-dynamic: the limit, as a multiple of the best trial's duration. [default: 1.5]", metavar="X"
    )
    early_stop: bool | EarlyStop | None = rare_search(
        "End a trial once its next iteration costs more than it is worth.", True, off="--no-early-stop"
    )
    early_precision: float | None = rare_search(
        "--early-stop: how precisely a value must be known, in percent. [default: as precisely as is worth it]",
        metavar="PCT",
    )
    whole_steps: bool = rare_search(
        "Make every step with the whole global batch: no run begins with steps of fewer micro-batches.", False
    )
    baseline: bool = rare_search("Run your own command first.", True, off="--no-baseline")
    output_dir: Path | str | None = output("Where studies are kept. [default: zenithtune-out]", metavar="PATH")
    study_name: str | None = output("The study's name. [default: preset and time]", metavar="NAME")
    db: str | Path | None = rare_output(
        "The study's database, a file or postgresql://... [default: OUTPUT_DIR/studies.db; with a file, its folder is "
        "the default of --output-dir]",
        metavar="PATH|URL",
    )
    resume: bool = output("Continue a study: the one named, or else the last one.", False)
    retry_failed: bool = rare_output("--resume: run the trials again that ended in an error.", False)
    runner: str | Runner | None = rare_place(
        "Where trials run: local, slurm, kubernetes, ray or hostfile. [default: local]", metavar="NAME"
    )
    runner_args: Pairs | None = rare_place("The runner's arguments, e.g. grace_s=10.")
    slurm: Pairs | None = place("Run each trial as a Slurm job: partition=...,nodes=2,gpus_per_node=8,time=00:20:00")
    kubernetes: Pairs | None = place(
        "Run each trial as a TrainJob or Job: manifest=trainjob.yaml,nodes=2,gpus_per_node=8,queue=..."
    )
    ray_address: str | None = rare_place("Run each trial on a Ray cluster: auto, or HOST:PORT.", metavar="ADDRESS")
    hostfile: str | Path | None = place(
        "Run trials over the hosts of a file: one line `name slots=8` each.", metavar="PATH"
    )
    parallel: str | int = place(
        "How many trials run side by side; auto: as many as there are GPUs for.", "1", metavar="auto|N"
    )
    gpus_per_trial: int | None = rare_place(
        "GPUs per node that a trial needs. [default: what the command starts]", at_least=1, metavar="N"
    )
    nodes_per_trial: int | None = rare_place(
        "Nodes that a trial needs. [default: what the command starts]", at_least=1, metavar="N"
    )
    max_duplicates: int = rare_search(
        "Stop random or optuna after N repeated points in a row.", 100, at_least=1, metavar="N"
    )
    max_prunes: int = rare_search(
        "Stop random or optuna after N pruned points in a row.", 1000, at_least=1, metavar="N"
    )
    notify: str | None = rare_output("Post the result to a webhook when the study ends.", metavar="URL")
    dump_env: bool = rare_output("Record the environment, with secrets masked.", False)
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
