"""Every layout worth an estimate, generated in pieces; layouts that break a rule are never built.

The ranks are laid out first (tp x pp x vp x cp x dp, then ep x etp), then the micro-batch, then recomputation,
sharding, sequence parallelism and attention; each step multiplies the rows by the options that it leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.axes import Axes, Cut
from zenith_tune.layouts.layout import SCHEDULES, SPLIT, Layout, divisors
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES, BoolArray, IntArray, LayoutBatch, layout_at
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.layouts.rules import BATCH, INTERLEAVED_BATCHES, RULES, SCHEDULE, JobFacts
from zenith_tune.layouts.search_space import SearchSpace, limits_of

Index = npt.NDArray[np.intp]


class Choices:
    """A list of options per key, each one or several numbers."""

    def __init__(self, options: Mapping[int, Sequence[tuple[int, ...]]], width: int = 1) -> None:
        self._keys = np.array(sorted(options), np.int64)
        counts = [len(options[key]) for key in sorted(options)]
        self._counts = np.array(counts, np.intp)
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
        flat = [option for key in sorted(options) for option in options[key]]
        self._flat: IntArray = np.array(flat, np.int32).reshape(len(flat), width if not flat else len(flat[0]))

    def count(self, keys: npt.NDArray[np.integer]) -> Index:
        return self._counts[np.searchsorted(self._keys, keys)]

    def expand(self, keys: npt.NDArray[np.integer]) -> tuple[Index, IntArray]:
        """Return, for every option of every row, the row's index and the option."""
        at = np.searchsorted(self._keys, keys)
        counts = self._counts[at]
        rows = np.repeat(np.arange(len(keys)), counts)
        first = np.repeat(self._starts[at] - np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp), counts)
        return rows, self._flat[first + np.arange(len(rows))]


COLUMNS = ("recompute", "recompute_layers", "zero", "sequence_parallel", "flash_attention")
NO_TP, WITH_SP, NO_SP = range(3)
"""Sequence parallelism: no tensor parallelism; possible; impossible because the sequence does not divide."""

Keys = npt.NDArray[np.int64]


class LastChoices:
    """The choices that multiply every row of ranks and micro-batches."""

    def __init__(self, model: ModelSpec, job: JobSpec, space: SearchSpace) -> None:
        self._model, self._job, self._space = model, job, space
        self._limits = limits_of(job.framework.name)

    def keys(self, rows: dict[str, IntArray]) -> Keys:
        """Return what each row's choices depend on: layers of a chunk, schedule, sharding, pipeline, sequence."""
        tp, pp = rows["tp"], rows["pp"]
        ranks = rows["dp"] * rows["cp"]
        shards = ranks > 1
        if self._model.num_experts:  # experts that several tensor ranks hold are sharded over them
            shards = shards | (ranks * tp > rows["ep"] * rows["etp"])
        with_sp = LayoutBatch.of(tp=tp, cp=rows["cp"], sequence_parallel=True)
        splits = RULES["sequence_chunks"].holds(JobFacts.of(self._model, self._job), with_sp)
        sequence = np.where(tp == 1, NO_TP, np.where(splits, WITH_SP, NO_SP))
        layers = layers_per_chunk(self._model.num_layers, pp=pp, vp=rows["vp"]).astype(np.int64)
        is_split = np.isin(rows["schedule"], [SCHEDULES.index(name) for name in SPLIT])
        return (((layers * 2 + is_split) * 2 + shards) * 2 + (pp > 1)) * 3 + sequence

    def choices(self, keys: Keys) -> Choices:
        return Choices({int(key): list(self._options(int(key))) for key in np.unique(keys)}, width=len(COLUMNS))

    def _options(self, key: int) -> Iterator[tuple[int, ...]]:
        key, sequence = divmod(key, 3)
        key, has_pipeline = divmod(key, 2)
        key, shards = divmod(key, 2)
        layers, is_split = divmod(key, 2)
        stages = self._stages(bool(shards), bool(has_pipeline))
        chosen = product(self._recompute(layers, bool(is_split)), stages, self._sequence(sequence), self._attention())
        return ((*recompute, stage, sp, flash) for recompute, stage, sp, flash in chosen)

    def _stages(self, shards: bool, has_pipeline: bool) -> list[int]:
        """Return the stages of sharding; only stage 0 where there is nothing to shard."""
        if not shards:
            return [0] if self._space.allows("zero", 0) else []
        stages = [stage for stage in self._limits.zero_stages if stage < 2 or not has_pipeline]
        if 1 in stages and not self._space.plain_optimizer and "zero" not in self._space.pinned:
            stages.remove(0)
        return [stage for stage in stages if self._space.allows("zero", stage)]

    def _recompute(self, layers: int, is_split: bool) -> list[tuple[int, int]]:
        """Return kinds of recomputation with their numbers of layers; block over all layers is uniform over one."""
        pinned = self._space.pinned.get("recompute_layers")
        uniform = [pinned] if isinstance(pinned, int) and 1 <= pinned <= layers else [1]
        numbers = {"none": [0], "selective": [0], "full/uniform": uniform, "full/block": self._block_layers(layers)}
        return [
            (RECOMPUTE_NAMES.index(kind), number)
            for kind in (self._limits.recompute if not is_split else ("none",))
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


PIECE = 16_384
"""Layouts per piece: many enough to be vectorised, few enough to stay in a cache."""
NEAR_BATCH = 1.25
"""Largest ratio of a near global batch to the given one."""

Rows = dict[str, IntArray]


class Candidates:
    """Every layout of a model over GPUs that follows the rules."""

    def __init__(
        self, model: ModelSpec, job: JobSpec, num_gpus: int, global_batch: int, space: SearchSpace | None = None
    ) -> None:
        self._space = space or SearchSpace()
        self._axes = Axes(model=model, job=job, num_gpus=num_gpus, space=self._space)
        self._last = LastChoices(model, job, self._space)
        self.num_gpus, self.global_batch = num_gpus, global_batch
        self.grids = self._grids()
        fits_batch: BoolArray = BATCH.holds(JobFacts(), LayoutBatch.of(**self.grids))
        for dp, number in zip(*np.unique(self.grids["dp"][~fits_batch], return_counts=True), strict=True):
            reason = BATCH.message(JobFacts(), Layout(num_gpus=int(dp), global_batch=global_batch))
            self._axes.log.add(BATCH.name, "grid", reason, int(number))
        self._near_grids = _take(self.grids, ~fits_batch)
        self._rows, self._near_rows = self._with_batches(_take(self.grids, fits_batch))

    @property
    def cuts(self) -> list[Cut]:
        return self._axes.log.cuts()

    @property
    def count(self) -> int:
        keys = self._last.keys(self._rows)
        return int(np.sum(self._last.choices(keys).count(keys))) if len(keys) else 0

    def batches(self) -> Iterator[LayoutBatch]:
        return self._expand(self._rows)

    def near_batches(self) -> Iterator[LayoutBatch]:
        """Yield layouts that only the global batch excludes, with the next larger batch that allows them."""
        dp = self._near_grids["dp"]
        gbs = -(-self.global_batch // dp) * dp
        near = gbs <= NEAR_BATCH * self.global_batch
        grids, _ = self._with_batches(_take(self._near_grids | {"gbs": gbs}, near), log=False)
        yield from self._expand(grids)
        yield from self._expand(self._near_rows)

    def _grids(self) -> Rows:
        """Return tp, pp, vp, schedule, cp and dp of every way to lay out the dense layers."""
        tps, cps, pairs = self._axes.tensor(), self._axes.context(), self._axes.pipeline()
        pps = np.array(pairs, np.int32).reshape(len(pairs), 3)
        shape = [np.arange(len(values)) for values in (tps, cps, pairs)]
        tp_at, cp_at, pair_at = (index.ravel() for index in np.meshgrid(*shape, indexing="ij"))
        tp, cp = np.array(tps, np.int32)[tp_at], np.array(cps, np.int32)[cp_at]
        pp, vp, schedule = pps[pair_at].T
        rows = {"tp": tp, "pp": pp, "vp": vp, "schedule": schedule, "cp": cp, "dp": self.num_gpus // (tp * pp * cp)}
        keep = self.num_gpus % (tp * pp * cp) == 0
        if isinstance(pinned := self._space.pinned.get("dp"), int):
            keep &= rows["dp"] == pinned
        return _take(rows | {"gbs": np.full(len(tp), self.global_batch, np.int32)}, keep)

    def _with_batches(self, grids: Rows, *, log: bool = True) -> tuple[Rows, Rows]:
        """Return rows with experts and micro-batches, and those that only interleaving's rule on batches excludes."""
        rows = self._with_experts(grids)
        quotas = rows["gbs"] // rows["dp"]
        options = {int(q): [(d,) for d in divisors(int(q)) if self._space.allows("mbs", d)] for q in np.unique(quotas)}
        index, mbs = Choices(options).expand(quotas)
        rows = _take(rows, index) | {"mbs": mbs[:, 0]}
        rows = _take(rows, SCHEDULE.holds(JobFacts(), LayoutBatch.of(**rows)))
        layouts, rule = LayoutBatch.of(**rows), INTERLEAVED_BATCHES
        holds: BoolArray = rule.holds(JobFacts(), layouts)
        if log and not holds.all():
            reason = rule.message(JobFacts(), layout_at(layouts, int(np.argmin(holds))))
            self._axes.log.add(rule.name, "micro-batch choice", reason, int(np.sum(~holds)))
        near = _take(rows, ~holds)
        group = near["dp"] * near["mbs"] * near["pp"]
        gbs = -(-near["gbs"] // group) * group
        return _take(rows, holds), _take(near | {"gbs": gbs}, gbs <= NEAR_BATCH * self.global_batch)

    def _with_experts(self, grids: Rows) -> Rows:
        options = {int(pp): list(self._axes.experts(int(pp))) for pp in np.unique(grids["pp"])}
        index, experts = Choices(options, width=2).expand(grids["pp"])
        rows = _take(grids, index) | {"ep": experts[:, 0], "etp": experts[:, 1]}
        if self._space.wide_experts or "etp" in self._space.pinned:
            return rows
        return _take(rows, (rows["etp"] == 1) | (rows["etp"] == rows["tp"]))

    def _expand(self, rows: Rows) -> Iterator[LayoutBatch]:
        if not len(rows["tp"]):
            return
        keys = self._last.keys(rows)
        choices = self._last.choices(keys)
        ends = np.cumsum(choices.count(keys))
        cuts = np.searchsorted(ends, np.arange(PIECE, int(ends[-1]) + PIECE, PIECE))
        start = 0
        for stop in (*(int(cut) + 1 for cut in cuts[:-1]), len(keys)):
            index, options = choices.expand(keys[start:stop])
            if len(index):
                piece = {name: column[start:stop][index] for name, column in rows.items()}
                yield LayoutBatch.of(**piece, **{name: options[:, i] for i, name in enumerate(COLUMNS)})
            start = stop


def _take(rows: Rows, index: BoolArray | np.ndarray[tuple[int], np.dtype[np.intp]]) -> Rows:
    return {name: column[index] for name, column in rows.items()}
