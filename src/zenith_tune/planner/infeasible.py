"""The error where no layout is left: which rule leaves nothing, and the nearest batch and number of GPUs that would do.

No arrays are used here, so that a mistake is reported before the heavy modules are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.axes import Axes
from zenith_tune.layouts.layout import Layout, divisors, layout_of
from zenith_tune.layouts.rules import BATCH, RULES, JobFacts, indivisible
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.limits import MAX_BATCH, MAX_SEQ

DEPENDS = ("world", "expert_world", "batch", "interleaved_batches", "schedule", "sequence_parallel")
"""Rules that depend on values not given, or that the search satisfies."""
PIPELINE = ("pipeline", "interleaving")
SEQUENCE = ("sequence_chunks", "expert_sequence")
MAX_TRIED = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """The reason that no layout is left for a number of GPUs and a batch."""

    model: ModelSpec
    job: JobSpec
    num_gpus: int
    global_batch: int
    space: SearchSpace

    def refuse(self) -> None:
        for name, value, most in (("batch", self.global_batch, MAX_BATCH), ("sequence", self.job.seq_len, MAX_SEQ)):
            if not 1 <= value <= most:
                raise UsageError(f"the {name} must be 1 to {most:,}, but got {value}", hint="give another")
        if not self.has_layouts():
            raise self.error()

    def has_layouts(self) -> bool:
        """Tell whether the fixed values keep the rules, and the batch divides over some number of ranks."""
        return self._pinned_reason() is None and any(self._takes_batch(dp) for dp in self.data_ranks())

    def data_ranks(self) -> set[int]:
        """Return every size of data parallelism that the other sizes allow."""
        axes = self._axes()
        tps, cps, pps = axes.tensor(), axes.context(), {pp for pp, *_ in axes.pipeline() if any(axes.experts(pp))}
        products = {tp * cp * pp for tp in tps for cp in cps for pp in pps}
        found = {self.num_gpus // product for product in products if self.num_gpus % product == 0}
        return {dp for dp in found if self.space.allows("dp", dp)}

    def error(self) -> UsageError:
        """Return the error with the rule that leaves nothing, and the nearest values that leave some."""
        nearest = [text for text in (self._nearest_batch(), self._nearest_gpus()) if text]
        hint = f"nearest are {' and '.join(nearest)}" if nearest else "fix another value, or none"
        what = f"no layout is left for {self.num_gpus} GPUs and batch {self.global_batch}"
        return UsageError(f"{what}: {self._reason()}", hint=hint)

    def _pinned_reason(self) -> str | None:
        """Return the first rule that the fixed values break on their own."""
        layout, facts = self._mildest(), JobFacts.of(self.model, self.job)
        reasons = [self._product("n_gpus", self.num_gpus, "tp", "pp", "cp", "dp")]
        reasons += [rule.reason(facts, layout) for name, rule in RULES.items() if self._judges(name)]
        reasons += [self._product("n_gpus", self.num_gpus, "etp", "ep", "pp")]
        reasons += [self._product("gbs", self.global_batch, "dp", "mbs")]
        return next(filter(None, reasons), None)

    def _product(self, name: str, value: int, *factors: str) -> str | None:
        given = [factor for factor in factors if factor in self.space.pinned]
        return indivisible(name, value, "*".join(given), *(self._size(factor) for factor in given))

    def _judges(self, rule: str) -> bool:
        """Tell whether a rule looks only at given values."""
        if rule in PIPELINE:
            return "pp" in self.space.pinned or "vp" not in self.space.pinned
        if rule in SEQUENCE:
            return "sp" in self.space.pinned
        return rule not in DEPENDS

    def _mildest(self) -> Layout:
        ignored = ("dp", "mbs", "flash")
        values = {name: value for name, value in self.space.pinned.items() if name not in ignored}
        layers = values.setdefault("recompute_layers", int(str(values.get("recompute")).startswith("full")))
        if layers:
            values.setdefault("recompute", "full/uniform")
        return layout_of(values, num_gpus=self.num_gpus, global_batch=self.global_batch)

    def _size(self, name: str, otherwise: int = 1) -> int:
        return int(self.space.pinned.get(name, otherwise))

    def _reason(self) -> str:
        if (pinned := self._pinned_reason()) is not None:
            return pinned
        ranks = self.data_ranks()
        if ranks:
            layout = Layout(num_gpus=min(ranks), micro_batch=self._size("mbs"), global_batch=self.global_batch)
            every_legal = "the fixed values leave nothing together, though each of them is legal"
            return BATCH.reason(JobFacts(), layout) or every_legal
        axes = self._axes()
        axes.tensor(), axes.context(), axes.pipeline()
        cuts = axes.log.cuts()
        return cuts[0].example if cuts else f"the fixed sizes do not divide {self.num_gpus} GPUs"

    def _takes_batch(self, dp: int) -> bool:
        if self.global_batch % dp:
            return False
        return any(self.space.allows("mbs", mbs) for mbs in divisors(self.global_batch // dp))

    def _nearest_batch(self) -> str | None:
        gbs = self.global_batch
        batches = {batch for dp in self.data_ranks() for batch in (gbs // dp * dp, -(-gbs // dp) * dp)} - {0, gbs}
        for batch in sorted(batches, key=lambda batch: (abs(batch - gbs), batch))[:MAX_TRIED]:
            if replace(self, global_batch=batch).has_layouts():
                return f"batch {batch} on {self.num_gpus} GPUs"
        return None

    def _nearest_gpus(self) -> str | None:
        nearest = (self.num_gpus + sign * distance for distance in range(1, MAX_TRIED + 1) for sign in (-1, 1))
        for num_gpus in nearest:
            if num_gpus > 0 and replace(self, num_gpus=num_gpus).has_layouts():
                return f"{num_gpus} GPUs with batch {self.global_batch}"
        return None

    def _axes(self) -> Axes:
        return Axes(model=self.model, job=self.job, num_gpus=self.num_gpus, space=self.space)
