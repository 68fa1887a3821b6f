"""One lever of DeepSpeed as a declaration: its keys in the JSON, the stages and releases that have it, its effect.

Keys, defaults and needs are those of runtime/zero/config.py, offload_config.py, stage_1_and_2.py and stage3.py in
DeepSpeed's tags from 0.7 to 0.19. What a lever saves decides only whether it is tried: what it gives is measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zenith_tune.describe.deepspeed_config import AUTO, STAGE, DsConfig, Keys
from zenith_tune.presets.levers import LeverDeclaration
from zenith_tune.strategies.zero_progressive.feasibility import ZeroSubject
from zenith_tune.study.parameters import Params, Value

Release = tuple[int, ...]
OLDEST: Release = (0,)
_VERSION = re.compile(r"DeepSpeed info: version=([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})")


def logged_release(log: str) -> Release | None:
    """Return the release that DeepSpeed says at its start."""
    found = _VERSION.search(log)
    return tuple(map(int, found.groups())) if found else None


def zero(*names: str) -> Keys:
    """Return where a key of the section zero_optimization stands."""
    return ("zero_optimization", *names)


OVERLAP, OPTIMIZER, PARAMS = zero("overlap_comm"), zero("offload_optimizer"), zero("offload_param")
DEFAULTS: Mapping[Keys, Value] = {
    zero("contiguous_gradients"): True,
    zero("reduce_scatter"): True,
    zero("allgather_partitions"): True,
    zero("reduce_bucket_size"): 500_000_000,
    zero("allgather_bucket_size"): 500_000_000,
    zero("stage3_prefetch_bucket_size"): 50_000_000,
    zero("stage3_param_persistence_threshold"): 100_000,
    zero("stage3_max_live_parameters"): 1_000_000_000,
    zero("stage3_max_reuse_distance"): 1_000_000_000,
}
"""What DeepSpeed takes where the JSON says nothing; what is not here is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSituation:
    """A point that levers are asked for: its configuration and ranks, and model and cluster where known."""

    params: Params
    config: DsConfig
    """Of the point, without levers."""
    num_ranks: int
    num_nodes: int = 1
    precision: str = "bf16"
    subject: ZeroSubject | None = None
    release: Release | None = None
    """None where it is not known."""

    @property
    def stage(self) -> int:
        stage = self.config.get(STAGE)
        return stage if isinstance(stage, int) else 0

    def own(self, keys: Keys) -> Any:
        """Return a value as the run has it without levers; None where it is off, or left to the Trainer."""
        value = self.config.get(keys)
        if keys == OVERLAP and value is None:
            return self.stage == 3
        return DEFAULTS.get(keys) if value is None else None if value == AUTO else value

    def is_offloaded(self, keys: Keys) -> bool:
        """Return whether a part of the state lies in the host's memory."""
        return bool(self.config.get((*keys, "device")) == "cpu")

    @property
    def num_params(self) -> int | None:
        """Parameters of the model, where it is known."""
        return self.subject.model.num_params if self.subject else None

    def share_of(self, num_bytes: float) -> float | None:
        """Return which share of the predicted memory so many bytes of a GPU are; None where it is not predicted."""
        if self.subject is None:
            return None
        point = {"mbs": 1, **self.params}
        return num_bytes / (self.subject.states(point).total + self.subject.planned_activations(point))

    def memory_with(self, name: str, value: Value) -> float | None:
        """Return by which share of the memory states and buffers change with another value of a key."""
        if self.subject is None:
            return None
        changed = self.subject.states({**self.params, name: value}).total
        return self.share_of(changed - self.subject.states(self.params).total)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedLever(LeverDeclaration[ZeroSituation]):
    """A lever of DeepSpeed's configuration."""

    sets: Mapping[Keys, Value]
    stages: tuple[int, ...]
    """At which it has an effect."""
    first: Release = OLDEST
    dumped: Mapping[str, Value] = field(default_factory=dict)
    """What DeepSpeed's dump of its configuration says where the lever is on, if not the last of its keys."""

    def is_on(self, at: ZeroSituation) -> bool:
        return all(at.own(keys) == value for keys, value in self.sets.items())

    def is_for(self, at: ZeroSituation) -> bool:
        """Return whether it can be turned on for a point of the job."""
        is_known = at.release is None or self.first <= at.release
        return is_known and at.stage in self.stages and not self.is_on(at) and self.goes(at)

    @property
    def logged(self) -> dict[str, Value]:
        """What the dump of a run's configuration says where it is on."""
        return dict(self.dumped) or {keys[-1].removeprefix("stage3_"): value for keys, value in self.sets.items()}
