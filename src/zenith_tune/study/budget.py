"""What a study may cost, and the training that it is for: by both a study knows when another trial no longer pays."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

from zenith_tune.errors import UsageError
from zenith_tune.units import GIB

DEFAULT_TRAIN_HOURS = 8.0
"""Hours of training where nothing states them: a night. Longer trainings are worth more trials."""
MAX_HOURS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The length of the training that a study is for."""

    hours: float | None = None
    """Hours that the user states."""
    steps: int | None = None
    """Steps that the command asks for; a small number is a test run, and does not count."""

    def __post_init__(self) -> None:
        refuse_out_of_range("--train-hours", self.hours)

    def seconds(self, step_s: float) -> float:
        """Return how long the training takes with steps of `step_s`."""
        if self.hours is not None:
            return self.hours * 3600
        return max((self.steps or 0) * step_s, DEFAULT_TRAIN_HOURS * 3600)

    def describe(self, step_s: float) -> str:
        """Say how long the training is taken to be, and how that is known."""
        number = self.seconds(step_s) / 3600
        hours = f"{number:,.0f} h of training" if number >= 100 else f"{number:.3g} h of training"
        if self.hours is not None:
            return hours
        is_long = (self.steps or 0) * step_s > DEFAULT_TRAIN_HOURS * 3600
        return f"{hours} ({self.steps} steps)" if is_long else f"{hours} (assumed; see --train-hours)"


def refuse_out_of_range(option: str, hours: float | None) -> None:
    """Refuse a number of hours that is none; written so that NaN is refused too."""
    if hours is not None and not 0 < hours <= MAX_HOURS:
        raise UsageError(f"{option} must be above 0 and at most {MAX_HOURS:g} hours, but got {hours:g}")


def refuse_price(price: float | None) -> None:
    """Refuse a price of a GPU-hour that is none."""
    if price is not None and not 0 < price <= MAX_PRICE:
        raise UsageError(f"--price must be above 0 and at most {MAX_PRICE:g} per GPU-hour, but got {price:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected cost of the trials of a study."""

    num_trials: int
    wall_s: float
    gpu_s: float
    is_cut: bool = False
    """Whether the budget ends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget of a study, and the training that it is for."""

    training: Training = field(default_factory=Training)
    gpu_hours: float | None = None
    """GPU-hours of all trials, those of earlier runs of the study included."""
    max_hours: float | None = None
    """Hours from start to end, earlier runs of the study included."""
    price: float | None = None
    """Dollars for one GPU for one hour."""

    def __post_init__(self) -> None:
        refuse_out_of_range("--gpu-hours", self.gpu_hours)
        refuse_out_of_range("--max-hours", self.max_hours)
        refuse_price(self.price)

    def left_s(self, *, gpu_s: float, elapsed_s: float, num_gpus: int) -> float | None:
        """Return how long a trial of `num_gpus` may still run; None: as long as it takes."""
        limits = []
        if self.gpu_hours is not None:
            limits.append((self.gpu_hours * 3600 - gpu_s) / num_gpus)
        if self.max_hours is not None:
            limits.append(self.max_hours * 3600 - elapsed_s)
        return min(limits, default=None)

    def bounded(self, estimate: Estimate, *, spent_gpu_s: float, elapsed_s: float) -> Estimate:
        """Return an estimate of what is to come, cut off where the budget ends.

        >>> whole = Estimate(num_trials=6, wall_s=9000, gpu_s=72000)
        >>> Budget(max_hours=1.0).bounded(whole, spent_gpu_s=0, elapsed_s=600)
        Estimate(num_trials=2, wall_s=3000.0, gpu_s=24000.0, is_cut=True)
        """
        shares = []
        if self.gpu_hours is not None and estimate.gpu_s > 0:
            shares.append((self.gpu_hours * 3600 - spent_gpu_s) / estimate.gpu_s)
        if self.max_hours is not None and estimate.wall_s > 0:
            shares.append((self.max_hours * 3600 - elapsed_s) / estimate.wall_s)
        share = max(min(shares, default=1.0), 0.0)
        if share >= 1:
            return estimate
        num = math.floor(estimate.num_trials * share)
        return Estimate(num_trials=num, wall_s=estimate.wall_s * share, gpu_s=estimate.gpu_s * share, is_cut=True)

    def or_else(self, kept: Budget) -> Budget:
        """Return the budget with what it leaves open as another has it."""
        hours = kept.training.hours if self.training.hours is None else self.training.hours
        return replace(
            self,
            training=replace(self.training, hours=hours),
            gpu_hours=kept.gpu_hours if self.gpu_hours is None else self.gpu_hours,
            max_hours=kept.max_hours if self.max_hours is None else self.max_hours,
            price=kept.price if self.price is None else self.price,
        )

    def options(self) -> list[str]:
        """Return what was stated, as the user would write it."""
        stated = {
            "--train-hours": self.training.hours,
            "--gpu-hours": self.gpu_hours,
            "--max-hours": self.max_hours,
            "--price": self.price,
        }
        return [f"{option} {value:g}" for option, value in stated.items() if value is not None]

    def describe(self) -> str:
        """Say what the study may take, or nothing where it may take what it likes."""
        parts = [f"{self.gpu_hours:g} GPU-hours"] if self.gpu_hours is not None else []
        parts += [f"{self.max_hours:g} hours"] if self.max_hours is not None else []
        return " or ".join(parts)

    def cost(self, gpu_s: float) -> str:
        """Write GPU time, and what it costs where the price is known."""
        hours = gpu_s / 3600
        money = f" (${hours * self.price:.2f})" if self.price is not None else ""
        few = f"{gpu_s:.0f} GPU-second{'' if round(gpu_s) == 1 else 's'}"
        time = f"{hours:.{1 if hours >= 1 else 2}f} GPU-hours" if hours >= 0.1 else few
        return f"{time}{money}"


MAX_PRICE = 1e4
DEFAULT_HEADROOM = 0.002
"""Share of a GPU's memory that the best layout leaves free: one that fills it to the last byte fails on another day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The limit on the GPU memory of the best layout."""

    max_bytes: float | None = None
    headroom: float | None = None
    """Share of the memory that must stay free; a small one where neither is given."""

    def __post_init__(self) -> None:
        if self.headroom is not None and not 0 <= self.headroom < 1:
            raise UsageError(f"--headroom must be from 0% to less than 100%, but got {self.headroom:.3g}")
        if self.max_bytes is not None and not 0 < self.max_bytes < math.inf:
            raise UsageError(f"--max-memory must be above 0, but got {self.max_bytes:g}")
        if self.max_bytes is not None and self.headroom is not None:
            raise UsageError("--max-memory and --headroom say the same", hint="give one of them")

    def or_else(self, kept: MemoryLimit) -> MemoryLimit:
        """Return the limit, or another one where none was stated."""
        return self if self.options() else kept

    def options(self) -> list[str]:
        """Return what was stated, as the user would write it."""
        size = [] if self.max_bytes is None else [f"--max-memory {self.max_bytes / GIB:g}GiB"]
        return size or ([] if self.headroom is None else [f"--headroom {self.headroom * 100:g}%"])

    def bytes_of(self, capacity_bytes: float | None) -> float | None:
        """Return the limit on a GPU of so much memory; None where there is none, or the GPU is unknown."""
        if self.max_bytes is not None:
            return self.max_bytes if capacity_bytes is None else min(self.max_bytes, capacity_bytes)
        if capacity_bytes is None:
            return None
        return (1 - (DEFAULT_HEADROOM if self.headroom is None else self.headroom)) * capacity_bytes


SIZE_UNITS = {"gib": 2**30, "mib": 2**20, "gb": 10**9, "mb": 10**6}


def parse_size(text: str) -> float:
    """Read --max-memory, in bytes.

    >>> parse_size("70GiB") / 2**30, parse_size("512 MB")
    (70.0, 512000000.0)
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(gib|mib|gb|mb)", text.strip().lower())
    if found is None:
        raise UsageError(f"--max-memory must be an amount with its unit, but got {text!r}", hint="write e.g. 70GiB")
    return float(found[1]) * SIZE_UNITS[found[2]]


def parse_share(text: str) -> float:
    """Read --headroom, in percent, as a fraction; a number below 1 could mean either, so it needs its sign.

    >>> parse_share("5%"), parse_share("5")
    (0.05, 0.05)
    """
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?) ?%?", text.strip())
    if found is None or float(found[1]) >= 100:
        raise UsageError(f"--headroom must be from 0% to less than 100%, but got {text!r}", hint="write e.g. 5%")
    if 0 < float(found[1]) < 1 and not text.strip().endswith("%"):
        raise UsageError(
            f"--headroom {text} may mean {float(found[1]) * 100:g}% or {found[1]}%", hint="write one of them"
        )
    return float(found[1]) / 100
