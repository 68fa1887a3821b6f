"""The base of presets of reinforcement learning: a job by overrides, whose step has phases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import JobSizes, LoggedSteps
from zenith_tune.planner.limits import MAX_BATCH
from zenith_tune.presets.shared.config_job import MBS, ConfigArguments, ConfigJob
from zenith_tune.presets.shared.config_preset import ConfigPreset
from zenith_tune.presets.shared.launched_gpus import job_gpus
from zenith_tune.presets.shared.training_files import read_yaml
from zenith_tune.registry import keywords_of
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.parsed_command import OVERRIDE
from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Value
from zenith_tune.study.resources import Resources

WORDS = {
    "tokens": "tokens",
    "mbs": "mbs",
    "log_probs": "log-probs ",
    "train_tp": "TP",
    "tp": "engines TP",
    "memory": "memory ",
}
SWITCHES = ("checkpointing", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseJob(ConfigJob):
    """A job whose step generates answers and trains on them."""

    @property
    @abstractmethod
    def by_tokens(self) -> bool:
        """Whether micro-batches are packed up to a number of tokens."""


@dataclass(frozen=True, kw_only=True)
class PhaseArguments(ConfigArguments):
    """What presets of such jobs take."""

    longest: bool = False
    """Whether measured runs generate every answer up to its limit, so that memory is tried at that length."""


J = TypeVar("J", bound=PhaseJob)


class PhasePreset(ConfigPreset[J]):
    """A preset of jobs that are configured by overrides KEY=VALUE, tuned phase by phase.

    Prompts, answers, their lengths and the updates of a step stay what they are.
    """

    program: ClassVar[str]
    """How the program is started, for those who are asked to."""
    of_phases: ClassVar[Mapping[str, tuple[str, ...]]]
    """The phases that each axis touches."""
    gpus: ClassVar[tuple[str, str]]
    """The keys of the GPUs of a node, and of the nodes."""
    reads: ClassVar[Callable[[str], LoggedSteps]]
    to_the_limit: ClassVar[str]
    """The key by which answers continue up to their limit."""

    @keywords_of(PhaseArguments)
    def __init__(self, given: PhaseArguments) -> None:
        super().__init__(**{field.name: getattr(given, field.name) for field in fields(ConfigArguments)})
        self._longest = given.longest

    @abstractmethod
    def _measured(self) -> dict[str, Any]:
        """Return the values that every measured run has, and the best command is without."""

    def _in_trials(self) -> dict[str, Any]:
        return {**self._measured(), **({self.to_the_limit: True} if self._longest else {})}

    def warnings(self, command: str) -> list[str]:
        if self._longest:
            return []
        risk = "answers become longer as training goes on, and may then run out of memory"
        return [f"{risk}: --args longest=true tries every setting with answers up to their limit"]

    def _own_run(self, command: str, run: ProgramRun | None) -> tuple[ProgramRun, dict[str, Any]]:
        """Return the run with its overrides, the last of a key, by the key as it is written."""
        if run is None:
            problem = f"{self.title} tunes training by {self._framework}, but the command does not start it"
            raise UsageError(problem, hint=f"give `{self.program} KEY=VALUE ...`, or a script that does")
        if run.script and run.added_at is None:
            problem = f"{run.script} does not pass its arguments on, so that no setting reaches {self._framework}"
            raise UsageError(problem, hint='put "$@" at the end of its training command')
        late = [word for word in run.arguments[run.added_at or 0 :] if OVERRIDE.match(word)] if run.script else []
        if late:
            problem = f"{run.script} has {late[0]} behind the arguments that it passes on, where it wins over a trial's"
            raise UsageError(problem, hint='put "$@" at the end of its training command')
        found = [(match[1], word[match.end() :]) for word in run.arguments if (match := OVERRIDE.match(word))]
        return run, {key: read_yaml(text) for key, text in found}

    @property
    def _framework(self) -> str:
        return self.title.removeprefix("preset ")

    def _refuse_counts(self, values: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in keys:
            if type(values.get(key)) is not int or not 1 <= values[key] <= MAX_BATCH:
                problem = f"{self.title} must know {key} as a whole number above 0, but got {values.get(key)!r}"
                raise UsageError(problem, hint="write the number into the command")

    def _refuse_share(self, values: Mapping[str, Any], key: str) -> None:
        share = values.get(key)
        if type(share) not in (int, float) or not 0 < float(share or 0) <= 1:
            raise UsageError(f"{key} must be above 0 and at most 1, but got {share!r}", hint="change it")

    def _num_gpus(self, values: Mapping[str, Any]) -> int:
        per_node, nodes = (values[key] for key in self.gpus)
        return job_gpus(self.title, self._given.n_gpus, per_node * nodes, option=f"{self.gpus[0]}=")

    def resources(self, command: str) -> Resources:
        per_node, nodes = (self._space.job.count(key) for key in self.gpus)
        return Resources(nodes=nodes, gpus_per_node=per_node)

    def phases(self) -> Mapping[str, tuple[str, ...]]:
        return self.of_phases

    def get_recommended_strategy(self) -> TuningStrategy:
        from zenith_rl.strategy import PhasesStrategy

        return PhasesStrategy()

    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        return ParsedCommand.of(command).override(values).text

    def label(self, params: Mapping[str, Value]) -> str:
        shown = [f"{word}{params[name]}" for name, word in WORDS.items() if name in params and self._shows(name)]
        shown += [f"{'' if params[name] else 'no '}{name}" for name in SWITCHES if name in params]
        return self._labelled(shown, params)

    def _shows(self, name: str) -> bool:
        return not (name == MBS and self._space.job.by_tokens)

    def _read_steps(self, log: str) -> LoggedSteps:
        return replace(type(self).reads(log), sizes=JobSizes(n_gpus=self._space.job.num_gpus))
