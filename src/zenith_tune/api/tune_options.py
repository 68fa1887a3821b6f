"""What a study can be given besides its command, by the names of the command line, and the tuner that this makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.describe.topology import read_topology
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator, is_objective_name
from zenith_tune.evaluators.early_stop import EarlyStop
from zenith_tune.evaluators.json_lines import PREFIX
from zenith_tune.presets.base import TuningPreset
from zenith_tune.presets.space import SEPARATOR
from zenith_tune.registry import construct, parse_pairs
from zenith_tune.runners.base import Runner, named_runner, parallel_trials
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.budget import Budget, MemoryLimit, Training, parse_share, parse_size
from zenith_tune.study.parameters import Direction
from zenith_tune.tuner import PresetTuner
from zenith_tune.tuning.config import Limits
from zenith_tune.tuning.events import StudyListener
from zenith_tune.tuning.watch import Timeouts

Pairs = Mapping[str, Any] | str
"""Names and values, as a mapping or as `k=v,k=v`."""
EXAMPLES = {"slurm": ("partition=gpu,time=00:20:00",), "runner_args": ("grace_s=10",), "strategy_args": ("seed=1",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Hold the options of a study; each has the name and the default that `zenithtune optimize` has for it."""

    n_trials: int | None = None
    """The budget of trials; None: as many as the strategy needs."""
    preset: str | TuningPreset | None = None
    """What knows the command's options; None: found by the command."""
    args: Pairs | None = None
    """The preset's arguments, such as {"n_gpus": 8, "gbs": 16}."""
    topology: str | Path | None = None
    """What `nvidia-smi topo -m` printed on one node."""
    strategy: str | TuningStrategy | None = None
    """How to search: guided, grid, random, optuna ...; None: what suits the preset."""
    strategy_args: Pairs | None = None
    space: Mapping[str, Any] | Sequence[str] | str | None = None
    """Axes of a program of your own: {"batch-size": [4, 8, 16], "lr": "log:1e-5..1e-3"}."""
    allow: Sequence[str] | str = ()
    """Levers to try as well although they change the numerics, such as "fp8"."""
    evaluator: str | TuningEvaluator | None = None
    evaluator_args: Pairs | None = None
    objective: str | None = None
    """What counts: tokens_per_s, step_time, tflops, samples_per_s, json:KEY, or a pattern with one group."""
    maximize: bool | None = None
    """Which way a pattern is better; None: the smaller the better."""
    select: str | None = None
    """Which match of a pattern counts: last, first, min, max, mean or median."""
    train_hours: float | None = None
    """How long the training will run that the study is for."""
    gpu_hours: float | None = None
    """The budget of GPU time, over all trials."""
    max_hours: float | None = None
    """When the study ends at the latest."""
    price: float | None = None
    """Of a GPU-hour, in dollars."""
    max_memory: float | str | None = None
    """What the best layout may take of a GPU's memory: "70GiB", or bytes."""
    headroom: float | str | None = None
    """What it must leave free: "5%", or a fraction."""
    confirm: bool = True
    """Whether the best layout and the user's own command run once more before a gain is claimed."""
    repeats: int = 1
    timeout: float | None = None
    """Seconds after which a trial is ended."""
    timeout_dynamic: bool = False
    """Whether a trial is ended once it cannot beat the best one any more."""
    timeout_margin: float | None = None
    early_stop: bool = True
    """Whether a trial is ended once its value is known, or almost certainly worse than the best."""
    early_precision: float | None = None
    """How well a value must be known for that, in percent."""
    baseline: bool = True
    """Whether the user's own command runs first."""
    output_dir: str | Path | None = None
    """Where studies are kept; None: zenithtune-out."""
    study_name: str | None = None
    db: str | Path | None = None
    resume: bool = False
    """Whether to continue a study: the one named, or else the last one."""
    retry_failed: bool = False
    runner: str | Runner | None = None
    """Where trials run: local, slurm, ray or hostfile; None: local."""
    runner_args: Pairs | None = None
    slurm: Pairs | None = None
    """Run each trial as a Slurm job: {"partition": "gpu", "time": "00:20:00"}."""
    ray_address: str | None = None
    hostfile: str | Path | None = None
    parallel: int | str = 1
    """How many trials run side by side; "auto": as many as there are GPUs for."""
    gpus_per_trial: int | None = None
    nodes_per_trial: int | None = None
    max_duplicates: int = 100
    max_prunes: int = 1000
    dump_env: bool = False
    """Whether the environment is recorded, with secrets masked."""
    listener: StudyListener | None = None
    """Who hears of the study: `StudyListener()` for silence; None: the terminal, or a notebook's output."""

    def tuner(self, command: str, *, owns_process: bool = False) -> PresetTuner:
        """Return the tuner of a command; one that owns its process takes what trials leave behind down with it."""
        evaluator, evaluator_args, objective = self._evaluator()
        return PresetTuner(
            command=command,
            preset=self._preset(),
            strategy=self.strategy,
            evaluator=evaluator,
            output_dir=self.output_dir,
            study_name=self.study_name,
            db_path=self.db,
            dump_env=self.dump_env,
            tune_args=self._tune_args(),
            strategy_args=self._pairs("strategy_args"),
            evaluator_args=evaluator_args,
            objective=objective,
            timeouts=self._timeouts(),
            early_stop=self._early_stop(),
            limits=Limits(consecutive_duplicates=self.max_duplicates, consecutive_prunes=self.max_prunes),
            budget=Budget(
                training=Training(hours=self.train_hours),
                gpu_hours=self.gpu_hours,
                max_hours=self.max_hours,
                price=self.price,
            ),
            memory=MemoryLimit(
                max_bytes=parse_size(self.max_memory) if isinstance(self.max_memory, str) else self.max_memory,
                headroom=parse_share(self.headroom) if isinstance(self.headroom, str) else self.headroom,
            ),
            confirm=self.confirm,
            repeats=self.repeats,
            baseline=self.baseline,
            resume=self.resume,
            retry_failed=self.retry_failed,
            listener=self.listener,
            needs=self._needs(),
            parallel=parallel_trials(str(self.parallel)),
            **self._where(owns_process=owns_process),
        )

    def _timeouts(self) -> Timeouts:
        if self.timeout_margin is None:
            return Timeouts(fixed_s=self.timeout, dynamic=self.timeout_dynamic)
        if not self.timeout_dynamic:
            raise UsageError("--timeout-margin goes with --timeout-dynamic", hint="give both")
        return Timeouts(fixed_s=self.timeout, dynamic=True, margin=self.timeout_margin)

    def _early_stop(self) -> EarlyStop | None:
        percent = self.early_precision
        if percent is not None and not self.early_stop:
            raise UsageError("--early-precision goes with --early-stop", hint="leave --no-early-stop out")
        chosen = EarlyStop() if percent is None else EarlyStop(precision=percent / 100)
        return chosen if self.early_stop else None

    def _preset(self) -> str | TuningPreset | None:
        if self.space and self.preset not in (None, "space"):
            raise UsageError(
                "--space is a preset of its own", hint="leave --preset out, or take --args search= of that preset"
            )
        return "space" if self.space else self.preset

    def _evaluator(self) -> tuple[str | TuningEvaluator | None, dict[str, Any], str | None]:
        """Return the evaluator, its arguments, and the objective's name."""
        given = {"direction": self.maximize, "selector": self.select}
        args: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        objective = self.objective
        if objective is None or is_objective_name(objective):
            if args:
                problem = "--maximize, --minimize and --select go with --objective REGEX"
                raise UsageError(
                    f"{problem}: give one" if objective is None else f"{problem}, but {objective!r} has its own way"
                )
            return self.evaluator, self._pairs("evaluator_args"), objective
        if self.evaluator not in (None, "regex", "json") or self.evaluator_args:
            raise UsageError(
                "--objective REGEX is an evaluator of its own", hint="leave --evaluator and --evaluator-args out"
            )
        if "direction" in args:
            args["direction"] = Direction.MAXIMIZE if args["direction"] else Direction.MINIMIZE
        if objective.startswith(PREFIX):
            return "json", {"key": objective.removeprefix(PREFIX), **args}, None
        return "regex", {"pattern": objective, **args}, None

    def _pairs(self, name: str) -> dict[str, Any]:
        given: Pairs | None = getattr(self, name)
        if given is None:
            return {}
        if isinstance(given, str):
            return {**parse_pairs(given, "--" + name.replace("_", "-"), *EXAMPLES.get(name, ()))}
        return dict(given)

    def _tune_args(self) -> dict[str, Any]:
        args = self._pairs("args")
        if self.space:
            args = {**args, "space": SEPARATOR.join(_axes(self.space))}
        if allowed := [self.allow] if isinstance(self.allow, str) else self.allow:
            args = {**args, "allow": "+".join([*filter(None, [args.get("allow")]), *allowed])}
        if self.topology is None:
            return args
        if "topology" in args:
            raise UsageError("--topology and --args topology= say the same", hint="give one of them")
        read_topology(Path(self.topology))  # a mistake is reported before anything runs
        return {**args, "topology": str(self.topology)}

    def _where(self, *, owns_process: bool) -> dict[str, Any]:
        """Return what the tuner must know of where trials run."""
        if isinstance(self.runner, Runner):
            return {"runner": self.runner}
        short = {"runner": self.runner, "ray_address": self.ray_address, "hostfile": self.hostfile}
        texts = {name: None if value is None else str(value) for name, value in short.items()}
        name, args = named_runner(texts, self._pairs("runner_args"), self._pairs("slurm"))
        if name != "local" or not owns_process:
            return {"runner": name, "runner_args": args}
        if "owns_process" in args:
            raise UsageError("runner local takes no argument 'owns_process' here. Valid: grace_s: float.")
        return {"runner": construct(LocalRunner, {**args, "owns_process": True}, "runner local")}

    def _needs(self) -> dict[str, int]:
        given = {"gpus_per_node": self.gpus_per_trial, "nodes": self.nodes_per_trial}
        return {name: number for name, number in given.items() if number is not None}


def _axes(space: Mapping[str, Any] | Sequence[str] | str) -> list[str]:
    """Return axes as the command line writes them.

    >>> _axes({"batch-size": [4, 8], "lr": "log:1e-5..1e-3"})
    ['batch-size=4,8', 'lr=log:1e-5..1e-3']
    """
    if isinstance(space, str):
        return [space]
    if not isinstance(space, Mapping):
        return list(space)
    return [
        f"{name}={values if isinstance(values, str) else ','.join(map(str, values))}" for name, values in space.items()
    ]
