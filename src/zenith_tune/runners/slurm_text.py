"""How Slurm writes things: lists of hosts, durations, and `Key=value` records."""

from __future__ import annotations

import re

_HOSTS = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/&]*)=")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_MAX_HOSTS = 100_000


def hosts(text: str) -> list[str]:
    """Return the names in a host list.

    >>> hosts("n[1-3,07],login,r[1-2]c[5-6]")
    ['n1', 'n2', 'n3', 'n07', 'login', 'r1c5', 'r1c6', 'r2c5', 'r2c6']
    """
    found: list[str] = []
    for part in _HOSTS.findall(text):
        found += _expanded(part.strip())
        if len(found) > _MAX_HOSTS:
            raise ValueError(f"a host list of more than {_MAX_HOSTS} names")
    return [name for name in found if name and name != "(null)"]


def _expanded(part: str) -> list[str]:
    bracket = _BRACKET.search(part)
    if bracket is None:
        return [part]
    numbers: list[str] = []
    for each in bracket[1].split(","):
        low, dash, high = each.partition("-")
        if not dash:
            numbers.append(low)
        elif low.isdecimal() and high.isdecimal() and int(high) - int(low) < _MAX_HOSTS:
            numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    head, tail = part[: bracket.start()], part[bracket.end() :]
    return [head + number + rest for number in numbers for rest in _expanded(tail)]


def fields(line: str) -> dict[str, str]:
    """Read one line of `scontrol --oneliner`; a value may hold blanks.

    >>> fields("NodeName=n1 OS=Linux 6.1 #1 SMP State=IDLE+DRAIN Reason=bad fan")["OS"]
    'Linux 6.1 #1 SMP'
    """
    found = list(_FIELD.finditer(line))
    ends = [each.start() for each in found[1:]] + [len(line)]
    return {each[1]: line[each.end() : end].strip() for each, end in zip(found, ends, strict=True)}


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration as Slurm takes and prints it; None for one without limit or not understood.

    >>> [duration_s(text) for text in ("20", "1:30", "00:20:00", "2-1", "1-00:00:30", "UNLIMITED")]
    [1200.0, 90.0, 1200.0, 176400.0, 86430.0, None]
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, *given = match.groups()
    numbers = [int(each) for each in given if each is not None]
    # A plain number is minutes and two are minutes and seconds; after days, hours come first.
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def megabytes(text: str) -> int | None:
    """Return the MB of a memory size such as 64G; None for one that is not understood.

    >>> [megabytes(text) for text in ("1000", "64G", "2T", "all")]
    [1000, 65536, 2097152, None]
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    return int(int(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[match[2].upper()])
