"""A job that is a configuration of nested keys: its values by path, what is searched of it, and what a point sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import JobFacts, LayoutRule, first_reason
from zenith_tune.presets.arguments import FrameworkArguments, searched_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.levers import LeverDeclaration, LeverPoint, set_levers
from zenith_tune.study.parameters import Value
from zenith_tune.units import positive_int

MBS = "mbs"


@dataclass(frozen=True, kw_only=True)
class ConfigArguments(FrameworkArguments):
    """What presets of such jobs take."""

    seq: int | None = None
    """Tokens of a sample, where the configuration does not say it."""
    mbs_max: int = 64
    steps: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigJob(ABC):
    """A job: its GPUs, and the values of its configuration by path, such as tokens.micro_batch_size."""

    num_gpus: int
    values: Mapping[str, Any]

    @property
    @abstractmethod
    def micro_batch(self) -> int:
        """Samples of a pass of one rank."""

    @property
    @abstractmethod
    def global_batch(self) -> int:
        """Samples of a step, which no trial changes."""

    @abstractmethod
    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        """Return the axes besides the micro-batch, each with the job's own value first."""

    @abstractmethod
    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the layout that a point stands for."""

    @abstractmethod
    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values of the configuration that a point stands for."""

    def micro_batches(self, most: int) -> tuple[int, ...]:
        """Return the sizes of a micro-batch besides the job's own."""
        return tuple(size for size in divisors(self.global_batch) if size <= most and size != self.micro_batch)

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sample; None where the configuration does not say it."""
        return None

    def model(self) -> ModelSpec:
        """Return the model that it trains, or raise UsageError where it is not known."""
        raise UsageError("the configuration does not say the model", hint="give --model NAME")

    @property
    def on_request(self) -> tuple[str, ...]:
        """The axes that are searched only where they are named."""
        return ()

    def count(self, key: str) -> int:
        """Return a value that is a whole number above 0, or 1."""
        return positive_int(self.values.get(key)) or 1


J = TypeVar("J", bound=ConfigJob)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLever(LeverDeclaration[LeverPoint[J]], Generic[J]):
    """A lever that is values of the configuration."""

    sets: Mapping[str, Value]
    is_known: bool = True
    """Whether every release has its keys; otherwise the job's own configuration must."""

    def is_for(self, at: LeverPoint[J]) -> bool:
        """Return whether it can be turned on for a point of a job that does not have it yet."""
        values = at.job.values
        has_keys = self.is_known or self.sets.keys() <= values.keys()
        return has_keys and any(values.get(key) != value for key, value in self.sets.items()) and self.goes(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSpace(AxisSpace, Generic[J]):
    """The axes of a job, the rules of its layouts, and the values that a point stands for."""

    job: J
    levers: tuple[ConfigLever[J], ...]
    rules: tuple[LayoutRule, ...]
    facts: JobFacts = field(default_factory=JobFacts)

    @classmethod
    def of(cls, job: J, search: str, mbs_max: int, **values: Any) -> Self:
        """Return the axes that `search` names; the others stay as they are."""
        choices = {**job.choices(), MBS: (job.micro_batch, *job.micro_batches(mbs_max))}
        return cls(job=job, axes=searched_axes(search, choices, job.on_request), **values)

    def layout(self, params: Mapping[str, Value]) -> Layout:
        return self.job.layout(params)

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        return first_reason(self.rules, self.facts, self.layout(params))

    def changed(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values of a point that the job does not have anyway."""
        on = set_levers(self.levers, self.levers_of(params))
        wanted = self.job.settings(params) | {key: value for lever in on for key, value in lever.sets.items()}
        return {key: value for key, value in wanted.items() if self.job.values.get(key) != value}


def facts_of(model: ModelSpec | None, seq_len: int | None) -> JobFacts:
    """Return what the rules need to know of a model, as far as it is known."""
    if model is None:
        return JobFacts(seq_len=seq_len)
    return JobFacts(
        num_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_query_groups=model.num_heads if model.latent_attention else model.num_kv_heads,
        num_experts=model.num_experts,
        seq_len=seq_len,
    )
