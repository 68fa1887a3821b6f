"""Every layout worth an estimate, made directly and in pieces: what breaks a rule is never built.

The ranks are laid out first (tp x pp x vp x cp x dp, then ep x etp), then the micro-batch, then recomputation,
sharding, sequence parallelism and attention; each step multiplies the rows by the options that it leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.axes import Axes, Cut
from zenith_tune.layouts.choices import Choices
from zenith_tune.layouts.constraints import check_batch
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.last_choices import COLUMNS, LastChoices
from zenith_tune.layouts.layout_batch import BoolArray, IntArray, LayoutBatch
from zenith_tune.layouts.megatron_constraints import check_interleaved_batches
from zenith_tune.layouts.search_space import SearchSpace

PIECE = 16_384
"""Layouts per piece: enough to make a call worth it, few enough to stay in a cache."""
NEAR_BATCH = 1.25
"""A batch is near another if it is at most so many times as large."""

Rows = dict[str, IntArray]


class Candidates:
    """Lay out a model over GPUs in every way that holds the rules."""

    def __init__(
        self, model: ModelSpec, job: JobSpec, num_gpus: int, global_batch: int, space: SearchSpace | None = None
    ) -> None:
        self._space = space or SearchSpace()
        self._axes = Axes(model=model, job=job, num_gpus=num_gpus, space=self._space)
        self._last = LastChoices(model, job, self._space)
        self.num_gpus, self.global_batch = num_gpus, global_batch
        self.grids = self._grids()
        fits_batch = global_batch % self.grids["dp"] == 0
        self._log_batch(~fits_batch)
        self._near_grids = _take(self.grids, ~fits_batch)
        self._rows, self._near_rows = self._with_batches(_take(self.grids, fits_batch))

    @property
    def cuts(self) -> list[Cut]:
        """What the rules cut off."""
        return self._axes.log.cuts()

    @property
    def count(self) -> int:
        """How many layouts there are."""
        keys = self._last.keys(self._rows)
        return int(np.sum(self._last.choices(keys).count(keys))) if len(keys) else 0

    def batches(self, size: int = PIECE) -> Iterator[LayoutBatch]:
        """Yield the layouts in pieces of about `size`."""
        return self._expand(self._rows, size)

    def near_batches(self, size: int = PIECE) -> Iterator[LayoutBatch]:
        """Yield layouts that only the global batch forbids, with the next larger batch that allows them."""
        dp = self._near_grids["dp"]
        gbs = -(-self.global_batch // dp) * dp
        near = gbs <= NEAR_BATCH * self.global_batch
        grids, _ = self._with_batches(_take(self._near_grids | {"gbs": gbs}, near), log=False)
        yield from self._expand(grids, size)
        yield from self._expand(self._near_rows, size)

    def _grids(self) -> Rows:
        """Return tp, pp, vp, cp and dp of every way to lay out the dense layers."""
        tps, cps, pairs = self._axes.tensor(), self._axes.context(), self._axes.pipeline()
        pps = np.array(pairs, np.int32).reshape(len(pairs), 2)
        shape = [np.arange(len(values)) for values in (tps, cps, pairs)]
        tp_at, cp_at, pair_at = (index.ravel() for index in np.meshgrid(*shape, indexing="ij"))
        tp, cp = np.array(tps, np.int32)[tp_at], np.array(cps, np.int32)[cp_at]
        pp, vp = pps[pair_at, 0], pps[pair_at, 1]
        rows = {"tp": tp, "pp": pp, "vp": vp, "cp": cp, "dp": self.num_gpus // (tp * pp * cp)}
        keep = self.num_gpus % (tp * pp * cp) == 0
        if isinstance(pinned := self._space.pinned.get("dp"), int):
            keep &= rows["dp"] == pinned
        return _take(rows | {"gbs": np.full(len(tp), self.global_batch, np.int32)}, keep)

    def _with_batches(self, grids: Rows, *, log: bool = True) -> tuple[Rows, Rows]:
        """Return rows with experts and micro-batches; apart, those whose batch an interleaved pipeline cannot take."""
        rows = self._with_experts(grids)
        quotas = rows["gbs"] // rows["dp"]
        options = {int(q): [(d,) for d in divisors(int(q)) if self._space.allows("mbs", d)] for q in np.unique(quotas)}
        index, mbs = Choices(options).expand(quotas)
        rows = _take(rows, index) | {"mbs": mbs[:, 0]}
        m = rows["gbs"] // (rows["dp"] * rows["mbs"])
        holds = (rows["vp"] == 1) | (m % rows["pp"] == 0)
        if log and not holds.all():
            self._log_interleaving(rows, m, ~holds)
        return _take(rows, holds), self._with_near_batch(_take(rows, ~holds))

    def _with_experts(self, grids: Rows) -> Rows:
        options = {int(pp): list(self._axes.experts(int(pp))) for pp in np.unique(grids["pp"])}
        index, experts = Choices(options, width=2).expand(grids["pp"])
        rows = _take(grids, index) | {"ep": experts[:, 0], "etp": experts[:, 1]}
        if self._space.wide_experts or "etp" in self._space.pinned:
            return rows
        return _take(rows, (rows["etp"] == 1) | (rows["etp"] == rows["tp"]))

    def _with_near_batch(self, rows: Rows) -> Rows:
        group = rows["dp"] * rows["mbs"] * rows["pp"]
        gbs = -(-rows["gbs"] // group) * group
        return _take(rows | {"gbs": gbs}, gbs <= NEAR_BATCH * self.global_batch)

    def _expand(self, rows: Rows, size: int) -> Iterator[LayoutBatch]:
        if not len(rows["tp"]):
            return
        keys = self._last.keys(rows)
        choices = self._last.choices(keys)
        ends = np.cumsum(choices.count(keys))
        cuts = np.searchsorted(ends, np.arange(size, int(ends[-1]) + size, size))
        start = 0
        for stop in (*(int(cut) + 1 for cut in cuts[:-1]), len(keys)):
            index, options = choices.expand(keys[start:stop])
            if len(index):
                piece = {name: column[start:stop][index] for name, column in rows.items()}
                yield LayoutBatch.of(**piece, **{name: options[:, i] for i, name in enumerate(COLUMNS)})
            start = stop

    def _log_batch(self, cut: BoolArray) -> None:
        for dp in np.unique(self.grids["dp"][cut]):
            reason = check_batch(self.global_batch, dp=int(dp), mbs=1)
            self._axes.log.add("batch", "grid", str(reason), int(np.sum(self.grids["dp"][cut] == dp)))

    def _log_interleaving(self, rows: Rows, m: IntArray, cut: BoolArray) -> None:
        first = int(np.argmax(cut))
        reason = check_interleaved_batches(int(m[first]), pp=int(rows["pp"][first]), vp=int(rows["vp"][first]))
        self._axes.log.add("interleaved_batches", "micro-batch choice", str(reason), int(np.sum(cut)))


def _take(rows: Rows, index: BoolArray | np.ndarray[tuple[int], np.dtype[np.intp]]) -> Rows:
    return {name: column[index] for name, column in rows.items()}
