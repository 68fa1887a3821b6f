"""A Trainer's run by the lines of its trial's hooks.

The Trainer's own figures are not read: they are cumulative since its start, and divide by the steps that it planned.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from zenith_tune.evaluators.hooked_run import HookedRun, HookedStep
from zenith_tune.hooks.injection import hook_events
from zenith_tune.presets.trainer.command import (
    ACCUMULATION,
    ATTENTION,
    CHECKPOINTING,
    GENERATION_BATCH,
    MICRO_BATCH,
    NUM_ITERATIONS,
    PACKING,
)
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import CONFIRMED_ON
from zenith_tune.units import positive_int

SAMPLE_PACKING = "sample_packing"
"""An argument of Axolotl's Trainer: a row may hold the samples of a whole micro-batch, end to end."""
NO_TRAINER_HINT = "name what to tune by --space NAME=VALUES and what to read by --objective (docs/plugs.md)"

_RELEASE = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTrainer:
    """A Trainer's report on itself when it began to train."""

    kind: str
    arguments: Mapping[str, Any]
    world: int = 1
    gpus_of_process: int = 0
    """GPUs per process; above 1 torch's DataParallel runs."""
    read_from: str = ""
    """The source of HfArgumentParser's arguments: options, file, or empty where the script sets them itself."""
    is_checkpointing: bool = False
    """Whether the script had turned gradient checkpointing on before the Trainer could."""
    attention: str | None = None
    packages: frozenset[str] = frozenset()
    release: tuple[int, int] = (0, 0)
    """Of transformers."""
    compute: int = 0
    """The GPU's compute capability times ten; 0 without a GPU."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self | None:
        """Read the hook's line."""
        arguments, packages = event.get("arguments"), event.get("packages")
        if event.get("event") != "trainer" or not isinstance(arguments, Mapping):
            return None
        return cls(
            kind=str(event.get("class")),
            arguments=arguments,
            world=positive_int(event.get("world")) or 1,
            gpus_of_process=positive_int(event.get("gpus_of_process")) or 0,
            read_from=str(event.get("read_from") or ""),
            is_checkpointing=event.get("checkpointing") is True,
            attention=event["attention"] if isinstance(event.get("attention"), str) else None,
            packages=frozenset(map(str, packages)) if isinstance(packages, list) else frozenset(),
            release=(int(found[1]), int(found[2])) if (found := _RELEASE.match(str(event.get("version")))) else (0, 0),
            compute=positive_int(event.get("compute")) or 0,
        )

    @property
    def micro_batch(self) -> int | None:
        """Samples per pass and rank."""
        return positive_int(self.arguments.get(MICRO_BATCH))

    @property
    def checkpoints(self) -> bool:
        """Whether activations are recomputed, by an argument or by a call of the program."""
        return self.is_checkpointing or self.arguments.get(CHECKPOINTING) is True

    @property
    def batch(self) -> int | None:
        """Samples of an update over all ranks."""
        accumulation = positive_int(self.arguments.get(ACCUMULATION)) or 1
        return self.micro_batch * accumulation * self.world if self.micro_batch else None

    @property
    def updates_per_generation(self) -> int:
        """Updates that train on the samples that are generated at once; 1 where none are."""
        num_generated = positive_int(self.arguments.get(GENERATION_BATCH)) or 0
        times = positive_int(self.arguments.get(NUM_ITERATIONS)) or 1
        return max(num_generated * times // (self.batch or 1), 1)

    def fault(self, asked: Mapping[str, Value]) -> str | None:
        """Return in one line which argument did not arrive."""
        held = {**self.arguments, CHECKPOINTING: self.checkpoints, ATTENTION: self.attention}
        for name, wanted in asked.items():
            if name in held and str(held[name]).lower() != str(wanted).lower():
                problem = f"the Trainer was made with {name} {held[name]}, where {wanted} was asked for"
                return f"{problem}: the script sets it after it has read its arguments"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestBatch:
    """The samples of the first updates, in a run that confirms a point."""

    num_updates: int
    problem: str = ""
    """Why they were not the longest samples."""
    num_samples: int = 0
    length: int = 0
    """Tokens of the longest sample, or characters where samples are text."""
    shortest: int = 0
    num_looked_at: int = 0
    """Samples looked at; 0 where tokens were repeated up to the length at which samples are cut."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self | None:
        """Read the hook's line."""
        if event.get("event") != "longest":
            return None
        return cls(
            num_updates=positive_int(event.get("updates")) or 0,
            problem=str(event.get("problem") or ""),
            num_samples=positive_int(event.get("samples")) or 0,
            length=positive_int(event.get("length")) or 0,
            shortest=positive_int(event.get("shortest")) or 0,
            num_looked_at=positive_int(event.get("looked_at")) or 0,
        )

    def extra(self) -> dict[str, Value]:
        """Return what is recorded of them; nothing where all samples are of one length."""
        if self.problem:
            return {CONFIRMED_ON: f"not tried on the longest samples: {self.problem}"}
        if self.shortest == self.length:
            return {}
        samples = f"the {self.num_samples} longest of {self.num_looked_at} samples"
        tried = samples if self.num_looked_at else f"{self.num_samples} samples of the length that they are cut at"
        return {CONFIRMED_ON: f"tried on {tried}, up to {self.length}", "longest_sample": self.length}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun(HookedRun):
    """A run by the lines of its hooks, with its Trainer."""

    trainer: LiveTrainer | None = None
    trains_otherwise: bool = False
    """Whether an optimizer made steps without a Trainer, after which the hook ended the program."""
    longest: LongestBatch | None = None
    usual_tokens: float | None = None
    """Mean tokens of an update of the user's own command; None for that run itself."""

    @classmethod
    def read(cls, log: str) -> Self:
        """Read the lines of both hooks; of several Trainers the last counts."""
        run = HookedRun.read(log)
        events = hook_events(log)
        found = [trainer for event in events if (trainer := LiveTrainer.of(event)) is not None]
        trainer = found[-1] if found else None
        held: dict[str, Any] = {each.name: getattr(run, each.name) for each in fields(run)}
        longest = next((batch for event in events if (batch := LongestBatch.of(event)) is not None), None)
        num_longest = longest.num_updates if longest else 0
        # The updates of the longest samples are not timed; the last of them ends where the timed ones begin.
        held["steps"] = [_counted(step, trainer) for step in run.steps if step.number >= num_longest]
        trains_otherwise = any(event.get("event") == "no_trainer" for event in events)
        return cls(**held, trainer=trainer, trains_otherwise=trains_otherwise, longest=longest)

    @property
    def new_shapes(self) -> float:
        """Share of the updates with a batch length, padding included, that none before had."""
        lengths = [step.sequence for _, step in self.timed if step.sequence is not None]
        return (len(set(lengths)) - 1) / (len(lengths) - 1) if len(lengths) > 1 else 0.0

    @property
    def mean_tokens(self) -> float | None:
        """Mean tokens of an update without padding; None where a step does not show them."""
        counts = [step.tokens for _, step in self.timed if step.tokens is not None]
        return statistics.fmean(counts) if counts and len(counts) == len(self.timed) else None

    @property
    def seconds(self) -> list[float]:
        """The time of each step, with its share of generating the samples that several steps train on.

        Where samples are of many lengths, it is scaled to the usual number of tokens.

        How much longer a step of more tokens takes is fitted to the steps themselves, by least squares: nothing where
        the host is the bottleneck, in proportion at most. Packed rows hold more samples the more tokens they hold.
        """
        times, mean = self._shared_seconds(), self.mean_tokens
        if mean is None:
            return times
        tokens = [float(step.tokens or mean) for _, step in self.timed]
        usual, mean_s = self.usual_tokens or mean, statistics.fmean(times)
        slope = statistics.linear_regression(tokens, times).slope if len(set(tokens)) > 1 else 0.0
        token_s = min(max(slope, 0.0), mean_s / mean)
        packs = self.trainer is not None and self.trainer.arguments.get(PACKING) is True
        usual_s = mean_s * usual / mean if packs else mean_s + token_s * (usual - mean)
        expected = [mean_s + token_s * (num - mean) for num in tokens]
        return [step_s * usual_s / own_s for step_s, own_s in zip(times, expected, strict=True)]

    def _shared_seconds(self) -> list[float]:
        """Return the time of each step, on average over those that train on what is generated at once."""
        times = [step_s for step_s, _ in self.timed]
        size = min(self.trainer.updates_per_generation if self.trainer else 1, len(times))
        begins = (min(max(at - size + 1, 0), len(times) - size) for at in range(len(times)))
        return [statistics.fmean(times[begin : begin + size]) for begin in begins]

    def trainer_fault(self, asked: Mapping[str, Value]) -> str | None:
        if self.trainer is None:
            seen = ", and the program was ended after its first optimizer steps" if self.trains_otherwise else ""
            return f"no Hugging Face Trainer found that trains{seen}: {NO_TRAINER_HINT}"
        if (num := self.trainer.gpus_of_process) > 1:
            problem = f"the Trainer runs {num} GPUs in one process by torch's DataParallel, which is slow"
            return f"{problem}: start the script by torchrun --nproc-per-node {num}, or set CUDA_VISIBLE_DEVICES=0"
        return self.trainer.fault(asked)


def _counted(step: HookedStep, trainer: LiveTrainer | None) -> HookedStep:
    """Return a step with its samples, also where its loader does not show them.

    The data may be a stream without a length, a row may hold several, and a batch may be what is generated at once.
    """
    if trainer is None or trainer.micro_batch is None:
        return step
    if step.samples is not None and not any(trainer.arguments.get(name) for name in (SAMPLE_PACKING, GENERATION_BATCH)):
        return step
    return replace(step, samples=trainer.micro_batch * trainer.world * step.passes or None)
