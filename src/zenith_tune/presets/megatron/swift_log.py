"""The dictionary lines that ms-swift 4.x prints instead of Megatron's iteration lines.

    {'loss': 1.2, 'grad_norm': 0.5, 'iteration': '5/100', 'elapsed_time': '23s', 'memory(GiB)': 41.2,
     'train_speed(s/it)': 4.612345}

`train_speed` is the mean since training began, warm-up included, so the time of an interval is the difference of
`iteration * train_speed` between two lines. A resumed run counts its iterations from where it resumed; that number is
not printed, and is told from the elapsed time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.evaluators.iterations import IterationLine, first_flaw, gib_to_bytes, last_run, read_number

_KEY = re.compile(r"""iteration['"]: ?['"](\d{1,12})/\d{1,12}['"]""")
_FIELD = re.compile(r"""['"]([^'"]{1,80})['"]: ?(?:['"]([^'"]{0,120})['"]|([^,{}'"\s]{1,40}))""")
_CLOCK = re.compile(r"(?:(\d{1,4})d )?(?:(\d{1,2})h )?(?:(\d{1,2})m )?(\d{1,2})s")
_REACH = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Hold one dictionary line."""

    iteration: int
    mean_s: float
    fields: Mapping[str, str]


def read_swift_lines(log: str) -> list[IterationLine]:
    """Return one iteration line for each interval between two dictionary lines, and one for the first of them."""
    lines: list[IterationLine] = []
    entries = _last_run(list(_entries(log)))
    start = _start_iteration(entries)
    before_iteration, before_s = start, 0.0
    for entry in entries:
        total_s = (entry.iteration - start) * entry.mean_s
        steps = entry.iteration - before_iteration
        if steps > 0:
            lines.append(_line(entry, (total_s - before_s) / steps))
        # A second line of the same iteration is an evaluation's: its time belongs to no interval.
        before_iteration, before_s = entry.iteration, total_s
    return last_run(lines)


def _line(entry: _Entry, seconds: float) -> IterationLine:
    return IterationLine(
        iteration=entry.iteration,
        seconds=seconds,
        memory_bytes=gib_to_bytes(entry.fields.get("memory(GiB)")),
        flaw=first_flaw(entry.fields),
    )


def _entries(log: str) -> Iterator[_Entry]:
    """Yield each complete dictionary that has an iteration and a speed."""
    for match in _KEY.finditer(log):
        opening = log.rfind("{", max(0, match.start() - _REACH), match.start())
        closing = log.find("}", match.end(), match.end() + _REACH)
        if opening < 0 or closing < 0:
            continue
        fields = {name: quoted or plain for name, quoted, plain in _FIELD.findall(log, opening, closing)}
        mean_s = read_number(fields.get("train_speed(s/it)", ""))
        # Before its first step a run prints a speed of 0.
        if mean_s is not None and mean_s != 0:
            yield _Entry(iteration=int(match[1]), mean_s=mean_s, fields=fields)


def _last_run(entries: list[_Entry]) -> list[_Entry]:
    """Return the entries after the last restart; logging.jsonl goes on where an earlier run in its folder stopped."""
    pairs = enumerate(itertools.pairwise(entries), start=1)
    restarts = [index for index, (before, entry) in pairs if _restarts(before, entry)]
    return entries[restarts[-1] :] if restarts else entries


def _restarts(before: _Entry, entry: _Entry) -> bool:
    """Tell whether a run begins: it is back at an iteration, which neither a doubled line nor an evaluation's is."""
    if entry.iteration != before.iteration:
        return entry.iteration < before.iteration
    return entry.fields != before.fields and "loss" in before.fields and "loss" in entry.fields


def _start_iteration(entries: Sequence[_Entry]) -> int:
    """Return the iteration from which a run was resumed: 0 unless the elapsed time clearly says otherwise."""
    if not entries:
        return 0
    first, last = entries[0], entries[-1]
    clock = _CLOCK.fullmatch(last.fields.get("elapsed_time", ""))
    if clock is None or not last.mean_s > 0:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    start = last.iteration - (((days * 24 + hours) * 60 + minutes) * 60 + seconds) / last.mean_s
    # The clock is whole seconds, so the number of steps is known to within one second's worth of them.
    uncertainty = 1 + 1 / last.mean_s
    return round(start) if uncertainty < start < first.iteration - 0.5 else 0
