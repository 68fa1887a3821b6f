"""A parallel layout: two factorizations of the same ranks, one for the dense layers and one for the experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Hold how a model is cut over `num_gpus` ranks.

    Megatron Core builds two factorizations of the same ranks, with the pipeline shared:
    dense `num_gpus = tp * cp * dp * pp`, experts `num_gpus = etp * ep * edp * pp`.
    """

    num_gpus: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    vp: int = 1
    """Model chunks per pipeline rank (interleaving)."""
    zero: int = 0
    """What is sharded over the data-parallel ranks: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights."""
    recompute: str = "none"
    """none, selective, full/uniform or full/block."""
    recompute_layers: int = 0
    """Full recomputation: layers per checkpoint (uniform) or layers recomputed per chunk (block); else 0."""
    sequence_parallel: bool = False
    flash_attention: bool = True

    @property
    def dp(self) -> int:
        """Ranks that hold the same dense weights and see other samples."""
        return self.num_gpus // (self.tp * self.pp * self.cp)

    @property
    def edp(self) -> int:
        """Ranks that hold the same experts."""
        return self.num_gpus // (self.etp * self.ep * self.pp)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per step and rank; only the dense data parallelism counts."""
        return self.global_batch // (self.micro_batch * self.dp)
