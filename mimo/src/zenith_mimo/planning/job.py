"""What layouts of an encoder and a language model are planned for: their work, the ranks, the batch and the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zenith_mimo.planning.config import LANGUAGE
from zenith_mimo.planning.work import ModuleRates, ModuleWork, PassRate
from zenith_tune.describe.cluster_spec import LinkSpec

ENCODER = "encoder"
MODULES = (ENCODER, LANGUAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoDevice:
    """The hardware of one rank, and the cost of a message between two."""

    flops_per_s: float
    fast_link: LinkSpec
    """Link between the ranks of one fast domain."""
    link: LinkSpec
    """Link between ranks of different fast domains."""
    fast_domain: int = 1
    """Ranks in a row that reach one another over the fast link."""
    memory_bytes: float = math.inf
    number_bytes: int = 4
    """Bytes of a number in activations and gradients that are sent."""
    state_bytes: float = 16.0
    """Weight, gradient and optimizer state of one parameter."""
    sharded_bytes: float = 0.0
    """Part of `state_bytes` that the data-parallel ranks share."""
    rates: Mapping[str, ModuleRates] = field(default_factory=dict, hash=False)
    """Measured rates by module; where there is none, `flops_per_s` holds."""
    update_s: float = 0.0
    """Optimizer time per parameter that a rank updates."""
    share: float = 1.0
    """The part of a processor that a rank has while all ranks of its host are busy: below 1 where they share cores."""

    def link_between(self, groups: Iterable[Iterable[int]]) -> LinkSpec:
        """Return the link of groups of ranks that move together: the slower one where a group leaves a fast domain."""
        for ranks in groups:
            if len({rank // self.fast_domain for rank in ranks}) > 1:
                return self.link
        return self.fast_link

    def rates_of(self, name: str) -> ModuleRates:
        """Return the rates of a module's passes."""
        stated = PassRate(flops_per_s=self.flops_per_s)
        return self.rates.get(name) or ModuleRates(forward=stated, backward=stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoJob:
    """The input of a plan of per-module layouts."""

    encoder: ModuleWork
    language: ModuleWork
    num_ranks: int
    global_batch: int
    items: tuple[int, ...]
    """Items of the samples, repeated."""
    device: MimoDevice
    can_share_ranks: bool = True
    """Whether both modules may live on all ranks."""
    can_pipeline_encoder: bool = True
    max_encoder_tp: int | None = None
    """The largest tensor parallelism that the encoder may have; None: any."""
    can_join_uneven: bool = True
    """Whether more encoder lanes than language lanes may bring different numbers of items."""
    recompute: tuple[tuple[bool, bool], ...] = ((False, False), (True, False), (False, True), (True, True))
    """Choices of which of encoder and language model recompute their activations, the least first."""
    expert_tensor: int = 1
    """Tensor parallelism inside an expert."""
    weight_shards: int = 0
    """Parts of each of the language model's weights, over tp ranks and data-parallel ranks that gather them; 0: tp."""
    expert_shards: int = 0
    """Ranks over which each expert's weights are split; 0: their tensor parallelism."""

    def work(self, name: str) -> ModuleWork:
        """Return the work of one module."""
        return self.language if name == LANGUAGE else self.encoder

    def expert_ranks(self, expert_parallel: int) -> int:
        """Return the ranks over which the experts' weights are split."""
        return (self.expert_shards or self.expert_tensor) * expert_parallel

    @property
    def has_even_items(self) -> bool:
        """Whether every sample has as many items."""
        return len(set(self.items)) == 1

    def period(self, samples: int) -> int:
        """Return after how many micro-batches of that many samples the items repeat."""
        return len(self.items) // math.gcd(len(self.items), samples)

    def num_items(self, begin: int, end: int) -> int:
        """Return the items of these samples of a global batch."""
        return sum(self.items[index % len(self.items)] for index in range(begin, end))
