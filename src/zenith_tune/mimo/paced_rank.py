"""A rank as slow as a device of a given speed, so that one machine shows the time of many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from zenith_tune.errors import UsageError
from zenith_tune.mimo.comm.topology import ModuleRole
from zenith_tune.mimo.model.modules import MimoModel
from zenith_tune.mimo.model_work import module_work
from zenith_tune.mimo.module_layout import LANGUAGE
from zenith_tune.mimo.samples import MicroBatch


class PacedRank:
    """Have each pass take FLOPs / `flops_per_s` by sleeping for what the arithmetic itself did not take.

    The arithmetic, the order of work and every message stay what they are. Ranks that sleep need no core, so that eight
    of them show on two cores what they would on eight devices, as long as the arithmetic is quick against the pace.
    """

    def __init__(self, model: MimoModel, flops_per_s: float) -> None:
        if not flops_per_s > 0:
            raise UsageError(f"a device's speed must be above 0 FLOP/s, but got {flops_per_s:g}: correct it.")
        if model.device != "cpu":
            raise UsageError(
                f"only CPU ranks can be paced, but this is one of {model.device}", hint="leave the pace out."
            )
        self._roles = model.topology.roles
        self._work = {name: module_work(model.config, name) for name in self._roles}
        self._recompute = model.config.recompute
        self._flops_per_s = flops_per_s

    @contextlib.contextmanager
    def __call__(self, batches: Mapping[str, MicroBatch], is_backward: bool) -> Iterator[None]:
        """Stretch what runs inside to the time of a pass of these modules over these micro-batches."""
        # The time of this thread and not the clock's: what it waits for other ranks is no arithmetic.
        begin = time.thread_time()
        yield
        flops = sum(self._flops(self._roles[name], batch, is_backward) for name, batch in batches.items())
        time.sleep(max(0.0, flops / self._flops_per_s - (time.thread_time() - begin)))

    def _flops(self, role: ModuleRole, batch: MicroBatch, is_backward: bool) -> float:
        work, layout = self._work[role.name], role.layout
        num_units: int = (batch.tokens if role.name == LANGUAGE else batch.items[role.name]).shape[0]
        if not is_backward:
            return num_units * work.forward_flops(stage=role.pp_rank, num_stages=layout.pp, tp=layout.tp)
        recompute = role.name in self._recompute
        return num_units * work.backward_flops(
            stage=role.pp_rank, num_stages=layout.pp, tp=layout.tp, recompute=recompute
        )
