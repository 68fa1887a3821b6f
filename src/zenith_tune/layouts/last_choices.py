"""What is chosen last, once the ranks are laid out: recomputation, sharding, sequence parallelism and attention."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.choices import Choices
from zenith_tune.layouts.framework_limits import limits_of
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES, IntArray
from zenith_tune.layouts.pipeline import chunk_layers
from zenith_tune.layouts.search_space import SearchSpace

COLUMNS = ("recompute", "recompute_layers", "zero", "sequence_parallel", "flash_attention")
NO_TP, WITH_SP, NO_SP = range(3)
"""Sequence parallelism: nothing to stand on; possible; impossible because the sequence does not divide."""

Keys = npt.NDArray[np.int64]


class LastChoices:
    """Hold the choices that multiply every row of ranks and micro-batches."""

    def __init__(self, model: ModelSpec, job: JobSpec, space: SearchSpace) -> None:
        self._model, self._job, self._space = model, job, space
        self._limits = limits_of(job.framework.name)

    def keys(self, rows: dict[str, IntArray]) -> Keys:
        """Return what the choices of each row depend on: layers per chunk, sharding, pipeline, sequence parallelism."""
        tp, pp = rows["tp"], rows["pp"]
        ranks = rows["dp"] * rows["cp"]
        shards = ranks > 1
        if self._model.num_experts:  # experts that several tensor ranks hold are sharded over these
            shards = shards | (ranks * tp > rows["ep"] * rows["etp"])
        splits = self._job.seq_len % (rows["cp"] * tp) == 0
        sequence = np.where(tp == 1, NO_TP, np.where(splits, WITH_SP, NO_SP))
        layers = chunk_layers(self._model.num_layers, pp, rows["vp"]).astype(np.int64)
        return ((layers * 2 + shards) * 2 + (pp > 1)) * 3 + sequence

    def choices(self, keys: Keys) -> Choices:
        """Return the choices for each of the keys, as rows of COLUMNS."""
        return Choices({int(key): list(self._options(int(key))) for key in np.unique(keys)}, width=len(COLUMNS))

    def _options(self, key: int) -> Iterator[tuple[int, ...]]:
        key, sequence = divmod(key, 3)
        key, has_pipeline = divmod(key, 2)
        layers, shards = divmod(key, 2)
        stages = self._stages(bool(shards), bool(has_pipeline))
        chosen = product(self._recompute(layers), stages, self._sequence(sequence), self._attention())
        return ((*recompute, stage, sp, flash) for recompute, stage, sp, flash in chosen)

    def _stages(self, shards: bool, has_pipeline: bool) -> list[int]:
        """Return the stages of sharding; where nothing is left to shard they are all the same, and stage 0 stands."""
        if not shards:
            return [0] if self._space.allows("zero", 0) else []
        stages = [stage for stage in self._limits.zero_stages if stage < 2 or not has_pipeline]
        if 1 in stages and not self._space.plain_optimizer and "zero" not in self._space.pinned:
            stages.remove(0)
        return [stage for stage in stages if self._space.allows("zero", stage)]

    def _recompute(self, layers: int) -> list[tuple[int, int]]:
        """Return kinds of recomputation with their numbers of layers.

        Block over all layers is uniform over one, and is left to it.
        """
        pinned = self._space.pinned.get("recompute_layers")
        uniform = [pinned] if isinstance(pinned, int) and 1 <= pinned <= layers else [1]
        numbers = {"none": [0], "selective": [0], "full/uniform": uniform, "full/block": self._block_layers(layers)}
        return [
            (RECOMPUTE_NAMES.index(kind), number)
            for kind in self._limits.recompute
            for number in numbers[kind]
            if kind in self._space.recompute
            if self._space.allows("recompute", kind) and self._space.allows("recompute_layers", number)
        ]

    def _block_layers(self, layers: int) -> list[int]:
        if isinstance(pinned := self._space.pinned.get("recompute_layers"), int):
            return [pinned] if 1 <= pinned <= layers else []
        most, steps = layers - 1, self._space.max_block_steps
        if most <= steps:
            return list(range(1, most + 1))
        return sorted({round(1 + i * (most - 1) / (steps - 1)) for i in range(steps)})

    def _sequence(self, kind: int) -> list[int]:
        both = self._space.without_sequence_parallel and not self._model.num_experts
        options = {NO_TP: [0], WITH_SP: [1, 0] if both else [1], NO_SP: [] if self._model.num_experts else [0]}[kind]
        pinned = self._space.pinned.get("sp")
        if pinned is None or kind == NO_TP:
            return options
        allowed = [0, 1] if kind == WITH_SP and not self._model.num_experts else options
        return [option for option in allowed if option == pinned]

    def _attention(self) -> list[int]:
        if isinstance(pinned := self._space.pinned.get("flash"), int):
            return [pinned]
        return [1, 0] if self._space.unfused_attention else [1]
