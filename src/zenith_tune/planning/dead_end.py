"""What to say where no layout is left: which rule leaves nothing, and what is nearest to what was asked for.

No arrays are used here, so that a mistake is told before the heavy parts are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.axes import Axes
from zenith_tune.layouts.constraints import check_batch
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.search_space import SearchSpace

MAX_TRIED = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """Look for what leaves no layout for so many GPUs and such a batch."""

    model: ModelSpec
    job: JobSpec
    num_gpus: int
    global_batch: int
    space: SearchSpace

    def refuse(self) -> None:
        """Raise where the sizes and the batch leave nothing."""
        if not self.has_layouts():
            raise self.error()

    def has_layouts(self) -> bool:
        """Tell whether some ranks take the batch."""
        return any(self._takes_batch(dp) for dp in self.data_ranks())

    def data_ranks(self) -> set[int]:
        """Return every size of data parallelism that the other sizes leave."""
        axes = self._axes()
        tps, cps, pps = axes.tensor(), axes.context(), {pp for pp, _ in axes.pipeline() if any(axes.experts(pp))}
        products = {tp * cp * pp for tp in tps for cp in cps for pp in pps}
        found = {self.num_gpus // product for product in products if self.num_gpus % product == 0}
        return {dp for dp in found if self.space.allows("dp", dp)}

    def error(self) -> UsageError:
        """Return which rule leaves nothing, and what is nearest."""
        nearest = [text for text in (self._nearest_batch(), self._nearest_gpus()) if text]
        cure = f"nearest are {' and '.join(nearest)}" if nearest else "fix fewer values, or change batch and GPUs"
        what = f"no layout is left for {self.num_gpus} GPUs and batch {self.global_batch}"
        return UsageError(f"{what}: {self._reason()}: {cure}")

    def _reason(self) -> str:
        ranks = self.data_ranks()
        if ranks:
            smallest = min(ranks)
            reason = check_batch(self.global_batch, dp=smallest, mbs=1)
            return reason or f"the fixed values leave no micro-batch for dp {smallest}"
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
        for num_gpus in _around(self.num_gpus):
            if replace(self, num_gpus=num_gpus).has_layouts():
                return f"{num_gpus} GPUs with batch {self.global_batch}"
        return None

    def _axes(self) -> Axes:
        return Axes(model=self.model, job=self.job, num_gpus=self.num_gpus, space=self.space)


def _around(number: int) -> Iterator[int]:
    for distance in range(1, MAX_TRIED + 1):
        if number > distance:
            yield number - distance
        yield number + distance
