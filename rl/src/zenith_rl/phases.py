"""The phases of a step by the same names whatever a framework calls them, and what holds each of them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from zenith_tune.evaluators.steps import PhaseFinding


class Phase(StrEnum):
    """A phase of a step, by the name that it is shown with."""

    GENERATION = "generation"
    REWARDS = "rewards"
    LOG_PROBS = "log-probs"
    REFERENCE = "reference"
    ADVANTAGES = "advantages"
    CRITIC = "critic"
    UPDATE = "update"
    SYNC = "sync"
    OFFLOAD = "offload"
    DATA = "data"
    OTHER = "other"
    """What of a step no timer is known for."""


BESIDES = {
    Phase.SYNC: "the weights' way to the engines",
    Phase.OFFLOAD: "states that go to the host and back",
    Phase.REWARDS: "rewards",
    Phase.DATA: "the data between phases",
    Phase.OTHER: "what no timer shows",
}
"""Phases that neither generate nor train."""
LEAST_REST = 0.01
"""Least share of a step that is left to no phase, and shown."""
LEAST_GAIN, LEAST_SHARE = 0.05, 0.1
"""Least share of a step that a finding saves at most, and that a phase besides generation and training takes."""
BACKWARD = 3.0
"""Forward passes that an update takes at least: a backward pass is two (Korthikanti et al., arXiv 2205.05198)."""


def named(seconds: Mapping[str, float | None], names: Mapping[str, str], step_s: float) -> dict[str, float]:
    """Return the seconds of the phases of a step by our names; several timers may be of one phase."""
    found: dict[str, float] = {}
    for timer, name in names.items():
        if each := seconds.get(timer):
            found[name] = found.get(name, 0.0) + each
    rest = step_s - sum(found.values())
    return {**found, Phase.OTHER: rest} if found and rest > LEAST_REST * step_s else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a log shows of the answers of a step; None where it does not."""

    mean: float | None = None
    longest: float | None = None
    """Tokens of the longest answer, or seconds where `mean` is in seconds."""
    unit: str = "tokens"
    imbalance: float | None = None
    """Share of the engines' time in which one waits for the busiest one."""

    @property
    def empty(self) -> float:
        """Mean share of the engines' places without an answer, if all answers begin at once."""
        return 1 - self.mean / self.longest if self.mean and self.longest and self.longest > self.mean else 0.0

    def waits(self) -> tuple[float, str]:
        """Return the share of generation that waits, and for what."""
        if self.imbalance is not None and self.imbalance > self.empty:
            parts = round(1 / self.imbalance)
            who = f"one GPU in {parts} waits" if parts > 1 else f"{self.imbalance:.0%} of the GPUs wait"
            return self.imbalance, f"{who} for the engine that has most to generate"
        figures = f"{self.mean:,.0f} {self.unit} on the mean, the longest {self.longest:,.0f}" if self.empty else ""
        return self.empty, f"{self.empty:.0%} of the engines' places wait for the longest answers ({figures})"


def findings(
    phases: Mapping[str, float], answers: Answers, settings: Mapping[str, str], *, forward_passes: int = 1
) -> list[PhaseFinding]:
    """Return what to change, the largest gain first; without any, the settings of the longest phase.

    `settings` has the options of a framework for each phase; `forward_passes` are those that log-probabilities take.
    """
    step_s = sum(phases.values())
    if not step_s:
        return []
    found = sorted(_findings(phases, answers, settings, forward_passes, step_s), key=lambda each: -each.gain)
    if found:
        return found
    longest = max(phases, key=lambda name: phases[name])
    share = phases[longest] / step_s
    if longest not in settings:
        return []
    finding = f"{longest} takes {share:.0%} of a step, and nothing that the log shows keeps it waiting"
    return [PhaseFinding(phase=longest, finding=finding, change=settings[longest], gain=share)]


def _findings(
    phases: Mapping[str, float], answers: Answers, settings: Mapping[str, str], passes: int, step_s: float
) -> Iterator[PhaseFinding]:
    share = phases.get(Phase.GENERATION, 0.0) / step_s
    waits, why = answers.waits()
    if share * waits > LEAST_GAIN:
        finding = f"generation takes {share:.0%} of a step: {why}"
        change = "let generation run a step ahead on GPUs of its own (zenithtune plan --rl ... --behind 1), or "
        yield PhaseFinding(
            phase=Phase.GENERATION,
            finding=finding,
            change=change + settings.get(Phase.GENERATION, ""),
            gain=share * waits,
        )
    for name, number in ((Phase.LOG_PROBS, passes), (Phase.REFERENCE, 1)):
        forward_s, update_s = phases.get(name, 0.0), phases.get(Phase.UPDATE, 0.0)
        most_s = number * update_s / BACKWARD
        if update_s and forward_s - most_s > LEAST_GAIN * step_s:
            work = "a forward pass" if number == 1 else f"{number} forward passes"
            finding = (
                f"{name} takes {forward_s / update_s:.0%} of the update's time, and {work} of the same tokens should"
                f" take at most {number / BACKWARD:.0%}"
            )
            gain = (forward_s - most_s) / step_s
            yield PhaseFinding(phase=name, finding=finding, change=settings.get(Phase.LOG_PROBS, ""), gain=gain)
    for name, what in BESIDES.items():
        if (share := phases.get(name, 0.0) / step_s) > LEAST_SHARE:
            finding = f"{name} takes {share:.0%} of a step: {what}"
            yield PhaseFinding(phase=name, finding=finding, change=settings.get(name, ""), gain=share)
