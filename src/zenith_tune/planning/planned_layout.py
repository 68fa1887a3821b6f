"""One layout with what is predicted for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_name import layout_name

PRESSURE = "memory"
"""The part of a step that is lost for want of memory."""
CAUSES = {
    "compute": "compute",
    "recompute": "memory (recompute)",
    "tp": "TP",
    "cp": "CP",
    "ep": "EP",
    "bubble": "PP bubble",
    "p2p": "PP p2p",
    "dp": "DP",
    "optimizer": "optimizer",
    "overhead": "overhead",
    PRESSURE: "memory (nearly full)",
}
"""What a person calls the parts of a step; recomputation is time paid for memory."""
SHORT = {"recompute": "recompute", "bubble": "bubble", PRESSURE: "full memory"}
"""The same in a few letters, where the long name is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """Hold a layout and its estimate."""

    layout: Layout
    step_s: float
    step_spread: float
    """Standard deviation of the logarithm of measured over estimated time."""
    step_interval_s: tuple[float, float]
    """The interval that holds the step time with 90%."""
    time_parts: dict[str, float]
    memory_bytes: float
    memory_interval_bytes: tuple[float, float]
    """The interval that holds the peak memory with 90%."""
    memory_parts: dict[str, float]
    capacity_bytes: float
    oom_probability: float
    tokens_per_s: float
    mfu: float
    """Model operations over the peak of all GPUs."""

    @property
    def name(self) -> str:
        """The short spelling."""
        return layout_name(self.layout)

    @property
    def roomy_s(self) -> float:
        """Step time if the GPU had memory to spare: without what a full one loses to its allocator."""
        return self.step_s - self.time_parts.get(PRESSURE, 0.0)

    def with_room(self) -> PlannedLayout:
        """Return the same layout as it would run on a GPU with memory to spare."""
        factor = self.roomy_s / self.step_s
        low, high = self.step_interval_s
        return replace(
            self,
            step_s=self.roomy_s,
            step_interval_s=(low * factor, high * factor),
            time_parts={name: part for name, part in self.time_parts.items() if name != PRESSURE},
            tokens_per_s=self.tokens_per_s / factor,
            mfu=self.mfu / factor,
        )

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Speed of one GPU."""
        return self.tokens_per_s / self.layout.num_gpus

    @property
    def headroom_bytes(self) -> float:
        """Memory left on the fullest GPU; negative where it is exceeded."""
        return self.capacity_bytes - self.memory_bytes

    @property
    def shares(self) -> dict[str, float]:
        """The parts of a step as fractions, the largest first."""
        parts = sorted(self.time_parts.items(), key=lambda part: -part[1])
        return {CAUSES.get(name, name): seconds / self.step_s for name, seconds in parts if seconds > 0}

    @property
    def bound(self) -> str:
        """What takes most of a step, and where that is the work itself, what comes next.

        A step is never all work, so that `compute` alone would not say what to look at.
        """
        parts = sorted(self.time_parts.items(), key=lambda part: -part[1])
        names = [(SHORT.get(name, CAUSES.get(name, name)), seconds) for name, seconds in parts if seconds > 0]
        shown = [f"{name} {seconds / self.step_s:.0%}" for name, seconds in names]
        return ", ".join(shown[: 2 if names and names[0][0] == "compute" else 1])
