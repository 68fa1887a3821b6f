"""What the passes and the end of a step take on each rank, read off while the real training runs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor, nn

from zenith_tune.mimo.comm.topology import peers_expected
from zenith_tune.mimo.link_probe import probe_links
from zenith_tune.mimo.measured_step import MeasuredStep, PassKey, TimedPass
from zenith_tune.mimo.model.modules import MimoModel
from zenith_tune.mimo.module_layout import LANGUAGE
from zenith_tune.mimo.samples import MicroBatch

KEPT = 256
"""Passes of a kind that are remembered, the newest."""
MOST_TOLD = 8
"""How often a run tells: more would say the same."""
Parts = tuple[float, float, float]
"""Seconds before the blocks, in them and after them, in the order of the forward pass."""


class StepClock:
    """Time every pass of this rank's modules, split where its blocks begin and end, and what follows the passes.

    It reads a clock and changes nothing. For CPU ranks: a GPU's passes go on after the call. Making one is a
    collective, which tries messages and sums for a moment.
    """

    def __init__(self, model: MimoModel) -> None:
        self._roles = model.topology.roles
        self._passes: dict[PassKey, deque[Parts]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._parts: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._marks: list[float] = []
        self._num_steps = self._num_told = 0
        for part in model.parts.values():
            self._watch(part.blocks)
        self._messages, self._sums = probe_links(model.topology, model.device)

    @contextlib.contextmanager
    def around_pass(self, batches: Mapping[str, MicroBatch], is_backward: bool) -> Iterator[None]:
        """Time a pass."""
        self._marks.clear()
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        (name, batch), *others = batches.items()
        if not others and len(self._marks) == 2:
            first, second = self._marks
            parts = (first - begin, second - first, end - second)
            self._passes[self._key(name, batch, is_backward)].append(parts[::-1] if is_backward else parts)

    @contextlib.contextmanager
    def around_part(self, name: str) -> Iterator[None]:
        """Time a part of the step besides the passes."""
        begin = time.perf_counter()
        yield
        self._parts[name].append(time.perf_counter() - begin)
        if name == "optimizer":
            self._end_step()

    @property
    def is_worth_telling(self) -> bool:
        """Tell whether there is something to gather; the same on every rank."""
        return self._num_steps > 1 and self._num_told < MOST_TOLD

    def gathered(self) -> MeasuredStep:
        """Return what all ranks have measured; a collective, whose result is whole on every rank."""
        passes = [
            TimedPass(key, len(times), *(statistics.median(parts) for parts in zip(*times, strict=True)))
            for key, times in self._passes.items()
        ]
        here = (passes, {name: list(times) for name, times in self._parts.items()})
        everywhere: list[tuple[list[TimedPass], dict[str, list[float]]]] = [here] * dist.get_world_size()
        with peers_expected("what the ranks have measured"):
            dist.all_gather_object(everywhere, here)
        self._num_told += 1
        return MeasuredStep(
            passes=_merged([each for ranks_passes, _ in everywhere for each in ranks_passes]),
            sync_s=_last_comer_s([parts["sync"] for _, parts in everywhere]),
            end_s=_last_comer_s([parts["optimizer"] for _, parts in everywhere]),
            messages=self._messages,
            sums=self._sums,
        )

    def _end_step(self) -> None:
        self._num_steps += 1
        if self._num_steps == 1:  # the first step of a run is no measure of the others
            self._passes.clear()
            self._parts.clear()

    def _key(self, name: str, batch: MicroBatch, is_backward: bool) -> PassKey:
        role, is_language = self._roles[name], name == LANGUAGE
        units = int((batch.tokens if is_language else batch.items[name]).shape[0])
        module = "llm" if is_language else "encoder"
        return PassKey(module, role.layout.tp, role.layout.pp, role.pp_rank, units, is_backward)

    def _watch(self, blocks: nn.Module) -> None:
        def mark(*_: object) -> None:
            self._marks.append(time.perf_counter())

        def mark_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            mark()
            if inputs[0].requires_grad:
                inputs[0].register_hook(mark)

        def mark_output(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            mark()
            if output.requires_grad:
                output.register_hook(mark)

        blocks.register_forward_pre_hook(mark_input)
        blocks.register_forward_hook(mark_output)


def _merged(passes: Sequence[TimedPass]) -> tuple[TimedPass, ...]:
    """Return one of each kind: the middle of what its ranks have."""
    by_key: dict[PassKey, list[TimedPass]] = defaultdict(list)
    for each in passes:
        by_key[each.key].append(each)
    return tuple(
        replace(
            same[0],
            count=sum(each.count for each in same),
            first_s=statistics.median(each.first_s for each in same),
            blocks_s=statistics.median(each.blocks_s for each in same),
            last_s=statistics.median(each.last_s for each in same),
        )
        for same in by_key.values()
    )


def _last_comer_s(times: Sequence[Sequence[float]]) -> float:
    """Return the time of the rank that comes last to a meeting, for which all the others wait: the shortest."""
    return statistics.median([float(min(step)) for step in zip(*times, strict=True)])
