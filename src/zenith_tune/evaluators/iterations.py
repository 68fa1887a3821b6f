"""The iteration lines of Megatron-LM (2.5 to 0.20) and ms-swift 3.x.

A line is ` iteration        5/     100 | name: value | name: value |...`, after whatever a launcher or a clock put
before it. Fields come and go between versions, so they are read by name. The elapsed time is the mean since the
previous print, and so are the counters of skipped and NaN iterations; Megatron-LM 0.20 prints iteration 1 by itself
and then counts it once more in the line after.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.units import GIB, MIB, whole

# The pattern starts with a plain word, which lets the search skip quickly over megabytes of other text.
_START = re.compile(r"iteration[ \t]{1,20}([0-9]{1,12})/[ \t]{0,20}[0-9]{1,12}[ \t]{0,4}\|")
# A report of one rank: `[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | ...`, to
# which Megatron-LM 0.20 may add ` | total device memory used: 5.0`.
# Megatron-Bridge's is in units of 10^9 bytes: `memory (GB) | mem-max-reserved-gigabytes: 2.0 | ...`.
_REPORT = r"memory \((MB|GB)\)[^\r\n]{{0,400}}?\bmax[ -]{}(?:-gigabytes)?: ([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?)"
_RESERVED = re.compile(_REPORT.format("reserved"))
_ALLOCATED = re.compile(_REPORT.format("allocated"))
_PLAIN = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE
)
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?")
_MAX_LINE = 16 * 1024
GB = 10**9

OTHER_MARKS = ("train_speed(s/it)", "SamplesPerSec=", "time (ms) | fwd")
"""What only a step that was trained is printed with, by ms-swift 4.x and by DeepSpeed."""
ELAPSED_MS = "elapsed time per iteration (ms)"
TFLOPS = "throughput per GPU (TFLOP/s/GPU)"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLine:
    """Hold what one iteration line says."""

    iteration: int
    seconds: float
    """Per iteration, as a mean since the previous line."""
    tflops_per_gpu: float | None = None
    global_batch_size: int | None = None
    memory_bytes: int | None = None
    num_skipped: int = 0
    num_nan: int = 0
    flaw: str | None = None
    """The first loss or gradient norm that is not finite, such as `lm loss is nan`."""
    has_lm_loss: bool = False


def read_number(text: str) -> float | None:
    """Return the number that `text` is, `1,234.5` and `nan` included, or None.

    >>> read_number("1,234.5"), read_number("1,5")
    (1234.5, None)
    """
    text = text.strip()
    if len(text) > 64:
        return None
    if _PLAIN.fullmatch(text):
        return float(text)
    return float(text.replace(",", "")) if _THOUSANDS.fullmatch(text) else None


def first_flaw(fields: Mapping[str, str]) -> str | None:
    """Return the first loss or gradient norm that is NaN or infinite, in words."""
    for name, text in fields.items():
        is_loss = "loss" in name and name != "loss scale"
        value = read_number(text) if is_loss or name in ("grad norm", "grad_norm") else None
        if value is not None and not math.isfinite(value):
            return f"{name} is {value}"
    return None


def read_megatron_lines(log: str) -> list[IterationLine]:
    """Return the iteration lines of the log's last run, in order."""
    found = (_read_line(iteration, fields) for iteration, fields in _raw_lines(log))
    return last_run([line for line in found if line is not None])


def has_iterations(log: str) -> bool:
    """Tell whether the log has any iteration line, of Megatron, ms-swift 4.x or DeepSpeed."""
    return _START.search(log) is not None or any(mark in log for mark in OTHER_MARKS)


def after_iterations(log: str) -> str:
    """Return what the log says after its last iteration line, or all of it where it has none."""
    last = max(log.rfind(mark) for mark in ("elapsed time per iteration", *OTHER_MARKS))
    return log[last:] if last >= 0 else log


def last_run(lines: Sequence[IterationLine]) -> list[IterationLine]:
    """Return the lines after the last restart, each iteration once: a launcher may restart, a log may be doubled."""
    kept: list[IterationLine] = []
    for line in lines:
        if kept and line.iteration < kept[-1].iteration:
            kept = []
        if not kept or line.iteration > kept[-1].iteration:
            kept.append(line)
    return kept


def peak_memory_bytes(log: str, lines: Sequence[IterationLine]) -> int | None:
    """Return the most memory that any rank reserved, where the log tells."""
    reports = _reported(_RESERVED, log)
    return max([*reports, *(line.memory_bytes for line in lines if line.memory_bytes)], default=None)


def peak_allocated_bytes(log: str) -> int | None:
    """Return the most memory that any rank had allocated, where the log tells: what is reserved without fragments."""
    return max(_reported(_ALLOCATED, log), default=None)


def _reported(pattern: re.Pattern[str], log: str) -> list[int]:
    units = {"MB": MIB, "GB": GB}
    return [round(float(match[2]) * units[match[1]]) for match in pattern.finditer(log)]


def gib_to_bytes(text: str | None) -> int | None:
    """Return a printed number of GiB in bytes, or None where it is none."""
    value = read_number(text) if text else None
    return round(value * GIB) if value is not None and math.isfinite(value) and value > 0 else None


def _raw_lines(log: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield number and fields of each iteration line; two that run into one line are separated."""
    starts = (match for match in _START.finditer(log) if not log[match.start() - 1 : match.start()].isalnum())
    for match, following in itertools.pairwise(itertools.chain(starts, [None])):
        assert match is not None
        end = min(following.start() if following else len(log), match.end() + _MAX_LINE)
        segment = log[match.end() : end]
        yield int(match[1]), _fields(segment.partition("\n")[0].partition("\r")[0])


def _fields(segment: str) -> dict[str, str]:
    """Return the `name: value` fields between the bars; the first of a name wins."""
    fields: dict[str, str] = {}
    for part in segment.split("|"):
        name, colon, value = part.rpartition(":")
        if colon:
            fields.setdefault(" ".join(name.split()), value.strip())
    return fields


def _read_line(iteration: int, fields: Mapping[str, str]) -> IterationLine | None:
    """Return the line, or None where it is torn and has no elapsed time."""
    elapsed_ms = read_number(fields.get(ELAPSED_MS, ""))
    if elapsed_ms is None:
        return None
    return IterationLine(
        iteration=iteration,
        seconds=elapsed_ms / 1000,
        tflops_per_gpu=read_number(fields.get(TFLOPS, "")),
        global_batch_size=whole(fields.get("global batch size", "")) or None,
        memory_bytes=gib_to_bytes(fields.get("memory(GiB)")),
        num_skipped=whole(fields.get("number of skipped iterations", "")) or 0,
        num_nan=whole(fields.get("number of nan iterations", "")) or 0,
        flaw=first_flaw(fields),
        has_lm_loss="lm loss" in fields,
    )
