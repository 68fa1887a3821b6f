"""The dictionary lines that ms-swift 4.x prints instead of Megatron's iteration lines, on standard output or in a file.

    {'loss': 1.2, 'grad_norm': 0.5, 'iteration': '5/100', 'elapsed_time': '23s', 'memory(GiB)': 41.2,
     'train_speed(s/it)': 4.612345}

`train_speed` is the mean since training began, warm-up included, so the time of an interval is the difference of
`iteration * train_speed` between two lines. A resumed run counts its iterations from where it resumed; that number is
not printed, and is inferred from the elapsed time.

Only the last rank prints, which with several nodes may be on another one, and a script may redirect its output; then
the lines are read from logging.jsonl. It lies in the output folder or, as a rule, in a folder below it for each run,
such as `v0-20260822-152222`. One that was last written before the trial began belongs to another run.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.errors import CommandError
from zenith_tune.evaluators.steps import Step, first_flaw, gib_to_bytes, read_number
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.trial_log import TrialLog

_KEY = re.compile(r"""iteration['"]: ?['"]([0-9]{1,12})/[0-9]{1,12}['"]""")
_FIELD = re.compile(r"""['"]([^'"]{1,80})['"]: ?(?:['"]([^'"]{0,120})['"]|([^,{}'"\s]{1,40}))""")
_CLOCK = re.compile(r"(?:([0-9]{1,4})d )?(?:([0-9]{1,2})h )?(?:([0-9]{1,2})m )?([0-9]{1,2})s")
_REACH = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    iteration: int
    mean_s: float
    fields: Mapping[str, str]
    position: int


def read_swift_steps(log: str) -> list[Step]:
    """Return one step for each interval between two dictionary lines, and one for the first of them."""
    found: list[Step] = []
    entries = list(_entries(log))
    # Those after the last restart; logging.jsonl continues where an earlier run in its folder stopped.
    pairs = enumerate(itertools.pairwise(entries), start=1)
    entries = entries[max((index for index, (before, entry) in pairs if _restarts(before, entry)), default=0) :]
    start = _start_iteration(entries)
    before_iteration, before_s = start, 0.0
    for entry in entries:
        total_s = (entry.iteration - start) * entry.mean_s
        steps = entry.iteration - before_iteration
        if steps > 0:
            found.append(
                Step(
                    number=entry.iteration,
                    seconds=(total_s - before_s) / steps,
                    memory_bytes=gib_to_bytes(entry.fields.get("memory(GiB)")),
                    flaw=first_flaw(entry.fields),
                    has_loss=False,
                    position=entry.position,
                )
            )
        # A second line of the same iteration is of an evaluation: its time belongs to no interval.
        before_iteration, before_s = entry.iteration, total_s
    return found


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
            yield _Entry(iteration=int(match[1]), mean_s=mean_s, fields=fields, position=opening)


def _restarts(before: _Entry, entry: _Entry) -> bool:
    """Tell whether a run begins: it repeats an iteration, other than by a doubled line or that of an evaluation."""
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
    # The clock shows whole seconds, so the number of steps is known to within those of one second.
    uncertainty = 1 + 1 / last.mean_s
    return round(start) if uncertainty < start < first.iteration - 0.5 else 0


NAME = "logging.jsonl"
OUTPUT_OPTIONS = ("--output-dir", "--save")
"""The output folder's options in ms-swift 4 and 3."""

_SAID = re.compile(r"(?:logging_path|logging file will be saved in): (\S[^\r\n]{0,1000}?logging\.jsonl)")
_VERSION = re.compile(r"v[0-9]{1,6}-")
_MOVES = re.compile(r"(?:^|[\s;&|(])(?:cd|pushd)\s")
_MAX_ENTRIES = 10_000


def logging_file(log: str, metadata: Mapping[str, Any]) -> str:
    """Return the text of the newest file that the trial wrote, or nothing where there is none.

    `metadata` must say how long the trial has run by now; without it no file can be distinguished from an older one.
    """
    command, duration_s = metadata.get("command"), metadata.get("duration")
    if not isinstance(command, str) or not isinstance(duration_s, int | float):
        return ""
    began = time.time() - duration_s
    written = [(at, path) for path in _places(log, command) if (at := _written_at(path)) >= began]
    return TrialLog(max(written)[1]).text() if written else ""


def _places(log: str, command: str) -> Iterator[Path]:
    """Yield where the file may lie: where the log says, or where the command puts its output."""
    said = [match[1] for match in _SAID.finditer(log)]
    if said:
        yield from _reachable(said[-1], command)
        return
    for folder in _reachable(_output_folder(command), command):
        yield folder / NAME
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES)]
        except OSError:
            continue
        yield from (folder / name / NAME for name in names if _VERSION.match(name))


def _output_folder(command: str) -> str | None:
    try:
        line = ParsedCommand.of(command)
        return next((value for option in OUTPUT_OPTIONS if (value := line.get(option))), None)
    except CommandError:
        return None


def _reachable(text: str | None, command: str) -> Iterator[Path]:
    """Yield the path, unless only the trial's shell knows where it leads."""
    if text is None or "$" in text or "`" in text or "\0" in text:
        return
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # no such user
        return
    if path.is_absolute() or not _MOVES.search(command):
        yield path


def _written_at(path: Path) -> float:
    """Return when the file was last written; never, if it is not there."""
    try:
        return path.stat(follow_symlinks=False).st_mtime
    except OSError:
        return float("-inf")
