"""Reinforcement learning after pre-training: which placement, engines and layout make the shortest step.

A step generates answers, takes their log-probabilities by the policy and by its reference, updates the policy, and
hands its weights to the engines. On the same GPUs one phase follows the other; apart, generation may be a step ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from zenith_rl.planning.generation import BF16, Engine, Generation, GenerationWork, engine_sizes
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.errors import UsageError
from zenith_tune.estimates.step import time_with_room
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import LayoutBatch, batch_of, layout_at
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.limits import MAX_SEQ, RISK
from zenith_tune.planner.planner import Planner
from zenith_tune.planner.what_if import resized
from zenith_tune.units import GIB

ASLEEP_BYTES = 3.0 * GIB
"""What a sleeping engine keeps of a GPU: its CUDA context and graphs. Assumed."""
MOST_SHARE = 0.92
"""Most of a GPU's memory that an engine is given."""
HOST_BYTES_PER_S = 2.5e10
"""A GPU's share of the way to the host's memory. Assumed."""
SYNC_BYTES_PER_S = 6.5e10
"""Rate at which all weights reach all engines, however many there are: 55 to 72 GB/s in the six rows of
MoonshotAI/checkpoint-engine's README (8 to 256 GPUs, 106 to 1,026 billion weights)."""
MOST_ROWS = 64
"""Sequences of an update for each GPU from which more make no other layout the best."""
NUM_TRIED = 16
"""Layouts whose states stay in memory that are tried with every engine: the states leave less to the cache."""
SHARES = 8
"""Into how many parts the GPUs are divided between training and generation."""
PARTS = 64
"""The longest prompt and answer that fit are found to such a part."""
MANY_GPUS = 1024
"""GPUs from which half as many ways to divide them are tried."""
STATES = ("weights", "gradients", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What an algorithm runs besides the policy's own update."""

    reference: bool = False
    """A frozen copy gives log-probabilities too."""
    critic: bool = False
    """A second model of the policy's size gives values, and is trained."""


ALGORITHMS = {
    "grpo": Algorithm(reference=True),
    "dapo": Algorithm(),
    "ppo": Algorithm(reference=True, critic=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RlJob:
    """What a step of reinforcement learning keeps, whatever its placement."""

    algorithm: Algorithm
    work: GenerationWork
    updates: int = 1
    """Updates of the policy in a step."""
    behind: int = 0
    """Steps by which the weights that generate may be older than those that are trained."""

    def rows(self, seq_len: int) -> int:
        """Return the sequences that the answers of a step are packed into."""
        return math.ceil(self.work.tokens / seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStep:
    """A step with its phases, on GPUs that they share or divide."""

    together: bool
    generation_gpus: int
    training_gpus: int
    generation: Generation
    layout: Layout
    phases: dict[str, float]
    """Seconds by phase: generation, log-probs, reference, critic, update, sync, offload."""
    step_s: float
    training_bytes: float
    capacity_bytes: float
    tokens: float
    """Tokens of prompts and answers in a step."""
    longest_tokens: int | None = None
    """Tokens of the longest prompt and answer together with which memory still suffices; None where not looked for."""

    @property
    def num_gpus(self) -> int:
        return self.generation_gpus if self.together else self.generation_gpus + self.training_gpus

    @property
    def name(self) -> str:
        return "together" if self.together else f"{self.generation_gpus} + {self.training_gpus}"

    @property
    def idle(self) -> float:
        """Share of the GPUs' time in which they wait for the other phase; nothing waits where they share all GPUs."""
        if self.together:
            return 0.0
        generation_s = self.phases["generation"] + self.phases["sync"]
        training_s = sum(self.phases.values()) - self.phases["generation"]
        waits = self.num_gpus * self.step_s - generation_s * self.generation_gpus - training_s * self.training_gpus
        return waits / (self.num_gpus * self.step_s)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens / self.step_s / self.num_gpus


@dataclass(frozen=True, slots=True)
class _Training:
    """Seconds and bytes of the training phases in many layouts."""

    layouts: LayoutBatch
    update_s: FloatArray
    forward_s: FloatArray
    state_bytes: FloatArray
    memory_bytes: FloatArray

    @property
    def passes_s(self) -> FloatArray:
        return self.update_s + self.forward_s

    @property
    def offload_s(self) -> FloatArray:
        """The states' way to the host and back."""
        return 2 * self.state_bytes / HOST_BYTES_PER_S


class RlPlanner:
    """Placements of one job of reinforcement learning, ranked by the time of a step.

    `planner` has the policy, all GPUs, and a job whose sequences hold the longest prompt and answer.
    """

    def __init__(self, planner: Planner, job: RlJob, *, space: SearchSpace | None = None, risk: float = RISK) -> None:
        self.planner, self.job, self.risk = planner, job, risk
        self.space = space or SearchSpace()
        gpu, framework = planner.cluster.gpu.name, planner.job.framework.name
        self._coefficients = planner.calibration.time.coefficients_for(
            gpu=gpu, precision=planner.job.precision, framework=framework
        )

    def plan(self, top: int = 10) -> list[PlacedStep]:
        """Return the best placements, the fastest first; of each placement and size of engine one, where any fits."""
        best: dict[tuple[int, int], PlacedStep] = {}
        for placed in [*self._together(), *self._apart()]:
            key = placed.generation_gpus * (not placed.together), placed.generation.tp
            if key not in best or placed.step_s < best[key].step_s:
                best[key] = placed
        found = sorted(best.values(), key=lambda placed: placed.step_s)[:top]
        return [replace(placed, longest_tokens=self._longest(placed)) for placed in found]

    def place(self, layout: Layout, *, tp: int, together: bool) -> PlacedStep:
        """Return the step of one training layout and one size of engine; apart, the other GPUs generate."""
        num_gpus = self.planner.cluster.num_gpus
        rest = num_gpus if together else num_gpus - layout.num_gpus
        training = self._training(batch_of([layout]), self._planner(layout.num_gpus))
        room = MOST_SHARE * self.planner.cluster.gpu.memory_bytes
        if (generation := self._generation(tp, rest, room, together=together)) is None:
            raise UsageError(f"engines of {tp} GPUs do not fit on {rest}", hint="take another size")
        return self._placed(training, 0, generation, rest, together=together, offloads=together)

    def _longest(self, placed: PlacedStep) -> int:
        """Return the most tokens of a prompt and its answer that training and the engines' cache have room for."""
        planner = self._asleep() if placed.together else self._planner(placed.training_gpus)
        memory_bytes = placed.generation.memory_share * self.planner.cluster.gpu.memory_bytes

        def fits(tokens: int) -> bool:
            job = replace(planner.job, seq_len=tokens)
            found = Planner(planner.model, planner.cluster, job, planner.calibration).estimate(placed.layout)
            return bool(found.oom_probability[0] < self.risk)

        fit, above = self.job.work.longest, min(self._engine(placed.generation.tp).tokens_in(memory_bytes), MAX_SEQ)
        if fit >= above or fits(above):
            return max(fit, above)
        while above - fit > max(fit // PARTS, 1):
            middle = (fit + above) // 2
            fit, above = (middle, above) if fits(middle) else (fit, middle)
        return fit

    def _together(self) -> Iterator[PlacedStep]:
        num_gpus = self.planner.cluster.num_gpus
        training = self._fitting(self._asleep())
        if training is None:
            return
        capacity = self.planner.cluster.gpu.memory_bytes
        order = np.argsort(training.passes_s, kind="stable")[:NUM_TRIED]
        for tp in engine_sizes(self.planner.model, num_gpus):
            if (whole := self._generation(tp, num_gpus, MOST_SHARE * capacity, together=True)) is None:
                continue
            row = int(np.argmin(training.passes_s + training.offload_s))
            yield self._placed(training, row, whole, num_gpus, together=True, offloads=True)
            for row in order:
                room = MOST_SHARE * capacity - float(training.state_bytes[row])
                if (beside := self._generation(tp, num_gpus, room, together=True)) is not None:
                    yield self._placed(training, int(row), beside, num_gpus, together=True, offloads=False)

    def _apart(self) -> Iterator[PlacedStep]:
        cluster = self.planner.cluster
        step = cluster.gpus_per_node if cluster.num_gpus > cluster.gpus_per_node else 1
        shares = SHARES if cluster.num_gpus <= MANY_GPUS else SHARES // 2
        splits = {max(round(cluster.num_gpus * part / shares / step), 1) * step for part in range(1, shares)}
        for num_trained in sorted(splits - {cluster.num_gpus}):
            rest = cluster.num_gpus - num_trained
            training = self._fitting(self._planner(num_trained))
            if training is None:
                continue
            row = int(np.argmin(training.passes_s))
            room = MOST_SHARE * cluster.gpu.memory_bytes
            for tp in engine_sizes(self.planner.model, rest):
                if (generation := self._generation(tp, rest, room, together=False)) is not None:
                    yield self._placed(training, row, generation, rest, together=False, offloads=False)

    def _generation(self, tp: int, num_gpus: int, room: float, *, together: bool) -> Generation | None:
        ahead = 1 if together else max(self.job.behind, 1)
        return self._engine(tp).generate(self.job.work, num_gpus // tp, room, ahead)

    def _engine(self, tp: int) -> Engine:
        planner = self.planner
        return Engine(
            model=planner.model,
            cluster=planner.cluster,
            coefficients=self._coefficients,
            tp=tp,
            precision=planner.job.precision,
        )

    def _planner(self, num_gpus: int) -> Planner:
        return _on(self.planner, resized(self.planner.cluster, num_gpus))

    def _asleep(self) -> Planner:
        cluster = self.planner.cluster
        smaller = replace(cluster.gpu, memory_bytes=round(cluster.gpu.memory_bytes - ASLEEP_BYTES))
        return _on(self.planner, replace(cluster, gpu=smaller))

    def _fitting(self, planner: Planner) -> _Training | None:
        """Return the training phases in the best layouts, and in those that take less memory."""
        rows = max(self.job.rows(planner.job.seq_len) / self.job.updates, 1.0)
        rows = min(rows, float(MOST_ROWS * planner.cluster.num_gpus))
        # A number that micro-batches and data-parallel sizes divide: each layout then takes as many as it needs.
        unit = 2 ** max(math.ceil(math.log2(max(rows, 1.0))) - 3, 0)
        batch = max(math.ceil(rows / unit) * unit, planner.cluster.num_gpus)
        try:
            found = planner.plan(batch, top=NUM_TRIED, space=self.space, risk=self.risk)
        except UsageError:  # so many GPUs leave no layout
            return None
        layouts = list(dict.fromkeys(planned.layout for planned in (*found.best, *found.front)))
        if not layouts:
            return None
        training = self._training(batch_of(layouts), planner)
        if not self.job.algorithm.critic:
            return training
        both = training.memory_bytes + training.state_bytes < MOST_SHARE * planner.cluster.gpu.memory_bytes
        return _taken(training, np.flatnonzero(both)) if both.any() else None

    def _training(self, layouts: LayoutBatch, planner: Planner) -> _Training:
        rows = self.job.rows(planner.job.seq_len)
        each = _with_rows(layouts, rows / self.job.updates)
        found = planner.estimate(each)
        about = planner.model, planner.cluster
        whole = _with_rows(layouts, rows)
        plain, twice = (
            time_with_room(*about, replace(planner.job, reference=asked), whole, planner.calibration).step_s
            for asked in (False, True)
        )
        states = sum((found.memory_parts[name] for name in STATES if name in found.memory_parts), np.zeros(len(each)))
        return _Training(each, found.step_s * self.job.updates, twice - plain, states, found.memory_bytes)

    def _placed(
        self, training: _Training, row: int, generation: Generation, gpus: int, *, together: bool, offloads: bool
    ) -> PlacedStep:
        algorithm, model = self.job.algorithm, self.planner.model
        forward_s, update_s = float(training.forward_s[row]), float(training.update_s[row])
        phases = {"generation": generation.seconds, "log-probs": forward_s}
        if algorithm.reference:
            phases["reference"] = forward_s
        if algorithm.critic:
            phases["critic"] = forward_s + update_s
        phases["update"] = update_s
        phases["sync"] = BF16 * model.num_params / SYNC_BYTES_PER_S
        if offloads:
            phases["offload"] = float(training.offload_s[row])
        step_s = sum(phases.values())
        if not together and self.job.behind:  # but for new weights, which both wait for
            step_s = phases["sync"] + max(generation.seconds, step_s - generation.seconds - phases["sync"])
        layout = layout_at(training.layouts, row)
        return PlacedStep(
            together=together,
            generation_gpus=gpus,
            training_gpus=layout.num_gpus,
            generation=generation,
            layout=layout,
            phases=phases,
            step_s=step_s,
            training_bytes=float(training.memory_bytes[row]),
            capacity_bytes=float(self.planner.cluster.gpu.memory_bytes),
            tokens=self.job.work.tokens,
        )


_FIGURES = ("update_s", "forward_s", "state_bytes", "memory_bytes")


def _taken(training: _Training, rows: npt.NDArray[np.intp]) -> _Training:
    return _Training(training.layouts.take(rows), *(getattr(training, name)[rows] for name in _FIGURES))


def _with_rows(layouts: LayoutBatch, rows: float) -> LayoutBatch:
    """Return the layouts with a batch of at least so many sequences, as few as each can have."""
    whole = layouts.mbs * layouts.dp
    number = np.ceil(rows / whole).astype(np.int32)
    # Interleaved stages take micro-batches in rounds of their number.
    number = np.where(layouts.vp > 1, np.ceil(number / layouts.pp) * layouts.pp, number)
    return replace(layouts, gbs=(number * whole).astype(np.int32))


def _on(planner: Planner, cluster: ClusterSpec) -> Planner:
    return Planner(planner.model, cluster, planner.job, planner.calibration)
