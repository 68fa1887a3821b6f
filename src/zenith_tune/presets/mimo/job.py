"""What a command that trains an encoder and a language model says of itself, in whichever dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zenith_tune.errors import UsageError
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.study.parameters import Params, Value

PRESET = "preset mimo"
MOST_RANKS = 4096
"""More ranks than that have more layouts than a plan on paper is quick for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Hold what the user says beside the command; None leaves it to the command."""

    n_gpus: int | None = None
    cluster: str | None = None
    device_flops: float | None = None
    memory_gib: float | None = None
    encoder: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the encoder where the command does not tell: layers, hidden, heads and patches."""
    images: tuple[int, ...] = ()
    """Items of the samples, round and round, where the command does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommand:
    """Hold the job, and how a layout is written into the command."""

    job: MimoJob
    seq_length: int
    options: Callable[[MimoCandidate], Mapping[str, Value]]
    """The options that take a value."""
    switches: Callable[[MimoCandidate], Mapping[str, bool]]
    """Those that are there or not."""
    own: Params | None
    """The point that the command itself stands for."""
    expert_parallel: tuple[int, ...] = (1,)
    notes: tuple[str, ...] = ()
    measures: bool = False
    """Whether a run tells what its passes took, so that rates need not be guessed."""


def checked_ranks(num_ranks: int) -> int:
    """Return a number of ranks that layouts can be searched for."""
    if not 2 <= num_ranks <= MOST_RANKS:
        law = f"{PRESET} searches layouts for 2 to {MOST_RANKS} ranks"
        raise UsageError(f"{law}, but the command has {num_ranks}: give --args n_gpus=8")
    return num_ranks
