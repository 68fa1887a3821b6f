"""Ranks that keep the others waiting: a straggler by Megatron-LM's own report, and steps that wait for data.

With --log-straggler Megatron-LM prints `MnRtt/Rnk: 100.00ms/0 | MxRtt/Rnk: 150.00ms/5 | ... | MnClk/Rnk:
1200.00MHz/5 | ... | MxDRtt/Rnk: 2.00ms/3 | MnEtpt/Rnk: 300.00TF/5 | ...`: the least and the most of each figure, with
the rank that has it; DRtt is the time to get a batch. Its timers print `batch-generator ....: (1.00, 90.00)`, the least
and the most of any rank, per iteration.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.doctor.causes.cause import Cause, CauseKind, Figure, quoted
from zenith_tune.evaluators.steady import long_run, num_warm_up
from zenith_tune.evaluators.steps import Step, read_number

LEAST_BEHIND = 0.2
"""Least delay of the slowest rank that is reported, relative to the fastest: pipeline stages differ by less."""
LEAST_WAIT = 0.1
"""Least share of an iteration, spent waiting for data, that is reported."""
_MARK = "MxRtt/Rnk: "
_FIELD = re.compile(r"\b(M[nx][A-Za-z]{3,4})/Rnk: ([0-9.]{1,14})[A-Za-z%]{0,4}/([0-9]{1,6})")
_TIMER = re.compile(r"batch-generator \.{1,60}: (?:\(([0-9.]{1,14}), ([0-9.]{1,14})\)|([0-9.]{1,14}))")
_DATA_ACTIONS = (
    "give the loader more processes (--num-workers), pinned memory and more to prefetch",
    "put the data on local disks or in memory, and tokenise it before the training",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """One line of the straggler detector."""

    position: int
    values: dict[str, tuple[float, int]]
    """Value and rank of each figure."""


def straggler(log: str) -> Cause | None:
    """Return the rank that is the slowest repeatedly, by how much, and whether its clock is why."""
    reports = [each for each in _reports(log) if {"MnRtt", "MxRtt"} <= each.values.keys()]
    if not reports:
        return None
    rank, times = Counter(each.values["MxRtt"][1] for each in reports).most_common(1)[0]
    own = [each for each in reports if each.values["MxRtt"][1] == rank]
    behind = statistics.median(each.values["MxRtt"][0] / max(each.values["MnRtt"][0], 1e-9) - 1 for each in own)
    if behind < LEAST_BEHIND or times * 2 < len(reports):
        return None
    last = own[-1].values
    reason = _reason(last, rank)
    figures: dict[str, Figure] = {"behind": behind, "num_reports": len(reports), "num_slowest": times}
    figures |= {"slowest_ms": last["MxRtt"][0], "fastest_ms": last["MnRtt"][0]}
    return Cause(
        kind=CauseKind.STRAGGLER,
        finding=f"rank {rank} is {behind:.0%} behind the fastest rank in {times} of {len(reports)} reports{reason}",
        evidence=quoted(log, (each.position for each in own[-2:])),
        actions=(
            f"find the node of rank {rank}, look at nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE and dmesg there",
            "run without that node: every other rank waits for it in each collective",
            "where it is the first or the last pipeline stage, give that stage fewer layers",
        ),
        rank=rank,
        figures=figures,
    )


def _reports(log: str) -> list[_Report]:
    found = []
    for match in re.finditer(re.escape(_MARK), log):
        start = log.rfind("\n", 0, match.start()) + 1
        line = log[max(start, match.start() - 200) : match.start() + 800].partition("\n")[0]
        fields = ((name, read_number(value), int(rank)) for name, value, rank in _FIELD.findall(line))
        values = {name: (value, rank) for name, value, rank in fields if value is not None}
        found.append(_Report(position=match.start(), values=values))
    return found


def _reason(values: dict[str, tuple[float, int]], rank: int) -> str:
    slow, fast, hottest = (values.get(name) for name in ("MnClk", "MxClk", "MxTmp"))
    found = []
    if slow and fast and slow[1] == rank and slow[0] < fast[0]:
        found.append(f"its clock is {slow[0]:g} MHz against {fast[0]:g}")
    if hottest and hottest[1] == rank:
        found.append(f"it is the hottest at {hottest[0]:g} C")
    return f": {', '.join(found)}" if found else ""


def data_stall(log: str, steps: Sequence[Step]) -> Cause | None:
    """Return how much of an iteration waits for data, by the timers, the straggler report or iterations that stall."""
    steady = steps[num_warm_up([step.pace_s for step in steps]) :]
    step_s = statistics.median(step.pace_s for step in steady) if steady else 0.0
    if not 0 < step_s < float("inf"):
        return None
    return _by_timers(log, step_s) or _by_report(log, step_s) or _by_spread(log, steady, step_s)


def _by_timers(log: str, step_s: float) -> Cause | None:
    printed = [(match.start(), read_number(match[2] or match[3])) for match in _TIMER.finditer(log)]
    found = [(position, millis / 1000) for position, millis in printed if millis is not None]
    # The first includes the start of the loader's processes.
    waits = [seconds for _, seconds in found[1:] or found]
    share = statistics.median(waits) / step_s if waits else 0.0
    if share < LEAST_WAIT:
        return None
    places = [position for position, _ in found[-2:]]
    return _stall(log, places, share, f"{share:.0%} of an iteration waits for data (timer batch-generator)")


def _by_report(log: str, step_s: float) -> Cause | None:
    reports = [each for each in _reports(log) if "MxDRtt" in each.values]
    waits = [each.values["MxDRtt"] for each in reports]
    share = statistics.median(value / 1000 for value, _ in waits) / step_s if waits else 0.0
    if share < LEAST_WAIT:
        return None
    rank = Counter(rank for _, rank in waits).most_common(1)[0][0]
    finding = f"{share:.0%} of an iteration waits for a batch, most of all on rank {rank}"
    return _stall(log, [each.position for each in reports[-2:]], share, finding, rank=rank)


def _by_spread(log: str, steady: Sequence[Step], step_s: float) -> Cause | None:
    """Return the share of iterations that stall repeatedly; a single one may be a checkpoint or an evaluation."""
    share = 1 - step_s / long_run([step.pace_s for step in steady])
    if share < LEAST_WAIT:
        return None
    slow = [step for step in steady if step.pace_s > 1.25 * step_s]
    finding = f"{len(slow)} of {len(steady)} iterations stall and take {share:.0%} of the time: mostly a loader run dry"
    return _stall(log, [step.position for step in slow[:3]], share, finding)


def _stall(log: str, positions: Sequence[int], share: float, finding: str, *, rank: int | None = None) -> Cause:
    return Cause(
        kind=CauseKind.DATA_STALL,
        finding=finding,
        evidence=quoted(log, positions),
        actions=_DATA_ACTIONS,
        rank=rank,
        figures={"share": share},
    )
