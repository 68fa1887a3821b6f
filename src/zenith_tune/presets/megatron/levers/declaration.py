"""One lever of Megatron-LM as a declaration: its options by release, what it needs of job and layout, its effect.

Options, releases and needs are those of Megatron-LM's tags from 0.9 to 0.19 and main of 2026-08-22: validate_args,
TransformerConfig, OptimizerConfig and DistributedDataParallelConfig. What a lever saves decides only whether it is
tried: what it gives is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.megatron.args import is_local
from zenith_tune.describe.megatron.version import NEWEST, OLDEST, Release
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.levers import LeverDeclaration
from zenith_tune.presets.megatron.job import MegatronJob
from zenith_tune.presets.megatron.rules import is_alone
from zenith_tune.study.parameters import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A layout of a job that levers are asked for, with model and cluster where they are known."""

    job: MegatronJob
    layout: Layout
    subject: PlanSubject | None = None

    @property
    def has_engine(self) -> bool:
        return not is_local(self.job.args)

    @property
    def has_replicas(self) -> bool:
        """Whether gradients are reduced over several ranks."""
        return not is_alone(self.layout, has_experts=self.job.has_experts)

    @property
    def has_shards(self) -> bool:
        """Whether the distributed optimizer shares its state among several ranks."""
        return self.has_replicas and self.layout.zero > 0

    @property
    def dispatcher(self) -> str:
        return self.job.args.text("--moe-token-dispatcher-type") or "allgather"

    def variable(self, name: str) -> str:
        """Return an environment variable as the run sees it."""
        run = self.job.run
        return os.environ.get(name, "") if run is None else run.variables.get(name, os.environ.get(name, ""))


BRIDGE = "NVIDIA, Megatron-Bridge's measured runs (skills/nemo-mbridge-perf-*)"
"""A source of effects."""
Goes = Callable[[Situation], bool]
DEFAULTS = {"--cross-entropy-fusion-impl": "native", "--moe-flex-dispatcher-backend": "deepep"}
"""Values that Megatron takes where a command does not give the option, in every release that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLever(LeverDeclaration[Situation]):
    """A lever as one range of releases spells it."""

    sets: Mapping[str, Value | None]
    """Options with their values, True for a switch, None for one that is taken away."""
    first: Release = OLDEST
    last: Release = NEWEST
    excluded_by: tuple[str, ...] = ()
    """Options of the command that it cannot go with, or that say how the user wants it."""
    dumped: Mapping[str, Value] = field(default_factory=dict)
    """What Megatron's dump of its arguments says where the lever is on, if not the names of its options."""

    @property
    def switch(self) -> str:
        return next(iter(self.sets))

    def is_on(self, job: MegatronJob) -> bool:
        args = job.args
        return args.first(*self.sets) is not None and all(
            not args.has(option)
            if value is None
            else args.has(option)
            if value is True
            else str(value) == (args.text(option) or DEFAULTS.get(option))
            for option, value in self.sets.items()
        )

    def is_refused(self, job: MegatronJob) -> bool:
        """Return whether the command itself says that it wants no such lever."""
        opposites = (f"--no-{option[2:]}" for option, value in self.sets.items() if value is True)
        return job.args.first(*self.excluded_by, *opposites) is not None

    def is_known(self, job: MegatronJob) -> bool:
        """Return whether the job's release of Megatron-LM spells it so."""
        return self.first <= job.features.release <= self.last

    def is_for(self, at: Situation) -> bool:
        """Return whether it can be turned on for a layout of the job."""
        job = at.job
        return self.is_known(job) and not self.is_refused(job) and not self.is_on(job) and self.goes(at)

    @property
    def logged(self) -> dict[str, Value]:
        """What the dump of a run's arguments says where it is on."""
        named = {option[2:].replace("-", "_"): value for option, value in self.sets.items() if value is not None}
        return dict(self.dumped) or named


def has_adam(at: Situation) -> bool:
    """Return whether the distributed optimizer runs Transformer Engine's Adam."""
    return at.has_engine and at.layout.zero > 0 and at.job.args.text("--optimizer") in (None, "adam")
