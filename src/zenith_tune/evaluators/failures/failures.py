"""Why a trial failed: its log and exit code become an outcome, a kind and one line for people."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zenith_tune.errors import EveryRunFailsAlike, SystemFaultError, UsageError
from zenith_tune.evaluators.failures.launcher_report import above_report, is_reported, root_cause
from zenith_tune.evaluators.failures.rank_errors import RankError, first_error, line_at, occurrences, split_prefix
from zenith_tune.evaluators.steps import after_steps, has_steps
from zenith_tune.layouts.layout import named_axes
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.trial_log import LINE_LENGTH, TrialLog, clean_line
from zenith_tune.units import MIB


class FailureKind(StrEnum):
    """The kind of a failure."""

    OUT_OF_MEMORY = "out of memory"
    HOST_OUT_OF_MEMORY = "out of host memory"
    CONFIGURATION = "configuration"
    COMMUNICATION = "communication"
    NOT_FOUND = "not found"
    DISK_FULL = "disk full"
    KILLED = "killed"
    TIMEOUT = "timeout"
    SILENT = "no output"
    METRIC = "metric"
    NO_EFFECT = "no effect"
    CRASH = "crash"
    LOST = "lost machine"
    REVOKED = "cancelled from outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a trial failed."""

    outcome: Outcome
    kind: FailureKind
    message: str
    """One line, fit for a terminal."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A sign of a failure: a plain string, which is quick to find, and a pattern that its line must match."""

    needle: str
    pattern: re.Pattern[str]

    @classmethod
    def plain(cls, needle: str) -> _Sign:
        return cls(needle, re.compile(re.escape(needle)))


# In each list the more specific come first: an exception before a warning, a cause before its effect on another rank.
_DEVICE = r"(?:CUDA|NPU|HIP|XPU|MUSA|MLU|GPU)"
_DEVICE_MEMORY = (
    _Sign("OutOfMemoryError", re.compile(r"^(?:torch\.|torch\.cuda\.)?OutOfMemoryError(?::|$)")),
    _Sign(
        "out of memory",
        re.compile(
            rf"Error: {_DEVICE} out of memory|{_DEVICE} out of memory\. Tried to allocate"
            rf"|^{_DEVICE} out of memory(?:[.:!]|$)"  # of a program that prints it without an exception
            rf"|{_DEVICE}(?: driver)? error: out of memory|[Cc]uda failure[ 0-9]{{0,6}}'out of memory'"
        ),
    ),
    *map(_Sign.plain, ("BLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "Failed to CUDA calloc")),
)
_HOST_MEMORY = (
    *map(_Sign.plain, ("oom_kill event", "oom-kill event", "OOM Killed", "DefaultCPUAllocator: ", "[Errno 12]")),
    _Sign.plain("is killed by signal: Killed"),
    _Sign("srun: error: ", re.compile(r"srun: error: .{1,200}: (?:Killed|Out Of Memory)$")),
    _Sign("MemoryError", re.compile(r"^(?:numpy\.\S{0,60})?_?(?:Array)?MemoryError(?::|$)")),
)
_DISK = tuple(map(_Sign.plain, ("No space left on device", "Disk quota exceeded")))
_USAGE = (
    _Sign(
        ": error: ",
        re.compile(r": error: (?:unrecognized arg|argument |the following arguments|ambiguous option|one of the arg)"),
    ),
    _Sign("Error: ", re.compile(r"^Error: (?:No such option|Invalid value|Missing (?:option|arg)|Got unexpected)")),
)
_UNKNOWN_OPTION = re.compile(r"unrecognized arg|No such option|Got unexpected")
_COMMUNICATION = (
    *map(_Sign.plain, ("Watchdog caught collective operation timeout", "NCCL error", "DistBackendError: ")),
    *map(_Sign.plain, ("HCCL error", "ddress already in use", "DistNetworkError: ", "DistStoreError: ")),
    *map(_Sign.plain, ("onnection closed by peer", "onnection reset by peer")),
)
# A shell's messages on the commands of a script, whose own exit code may be another one.
_SHELL_NOT_FOUND = (
    _Sign(
        "command not found",
        re.compile(r"^(?:\S{0,80}sh|\S{0,200}\.sh): (?:line [0-9]{1,6}: )?\S{1,200}: command not found$"),
    ),
    _Sign("not found", re.compile(r"^\S{0,80}sh: [0-9]{1,6}: \S{1,200}: not found$")),
    _Sign("can't open file ", re.compile(r"^\S{0,80}python\S{0,12}: can't open file ")),
    _Sign(
        "No such file",
        re.compile(r"^(?:\S{0,80}sh|\S{0,200}\.sh): (?:line [0-9]{1,6}: )?\S{1,200}: No such file or dir"),
    ),
)
_SHELL_KILLED = (_Sign("Killed", re.compile(r"^(?:\S{1,200}: line [0-9]{1,6}: {1,8}[0-9]{1,9} )?Killed(?: |$)")),)
_FAULTS = (
    _Sign.plain("Fatal Python error: "),
    _Sign(
        "(core dumped)",
        re.compile(r"(?:^|: |[0-9] )(?:Segmentation fault|Aborted|Bus error|\w[\w ]{1,40}) {0,8}\(core dumped\)"),
    ),
    _Sign(
        "Segmentation fault",
        re.compile(r"^(?:\S{1,200}: line [0-9]{1,6}: {1,8}[0-9]{1,9} )?Segmentation fault(?: |$)"),
    ),
)
_ARGUMENT_WORDS = re.compile(
    r"divisible|divide|must |should |support|incompatible|compatible|requires?\b|required|world[ _]?size|remaining_argv"
    r"|unrecogni[sz]ed|unexpected keyword|invalid (?:value|choice|argument|config)|cannot use|can't use|please "
    r"|argument|parallel|batch[ _]size|num_layers|recompute|not in \[|is not a valid",
    re.IGNORECASE,
)
_DEVICE_FAULT = re.compile(r"^(?:CUDA|cuDNN|CUBLAS|NPU|HIP|Triton)\b", re.IGNORECASE)
_CONFIGURATION_TYPES = frozenset(
    ("ValueError", "KeyError", "TypeError", "RuntimeError", "NotImplementedError", "ValidationError")
)

_INFORMATIVE = re.compile(r"error|fail|fatal|abort|exception|not found|denied|killed|no such|signal", re.IGNORECASE)
_NO_INPUT = "EOFError: EOF when reading a line"
_SOURCE_LINE = re.compile(r'File "([^"\n]{1,500})", line [0-9]{1,9}[^\n]{0,200}\n([^\n]{1,500})')
_FAULT_CODES = frozenset(-number for number in (signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV))
_SOURCE_INDENT = "    "
_TAIL_CHARACTERS = 64 * 1024
_MAX_LINES = 400


def classify(log: str, exit_code: int | None, *, timed_out: bool = False, silent: str = "") -> Failure | None:
    """Return why a run failed, or None; `silent` says for how long one that was ended printed nothing."""
    if exit_code == 0 and not timed_out and not silent:
        return None
    log = log.replace("\r", "\n")
    if line := _first_line(log, _DEVICE_MEMORY):
        return _failure(FailureKind.OUT_OF_MEMORY, line)
    if line := _first_line(log, _HOST_MEMORY):
        return _failure(FailureKind.HOST_OUT_OF_MEMORY, line)
    if silent:
        return _failure(FailureKind.SILENT, f"{silent}; {_ending(log)}")
    if timed_out:
        return _failure(FailureKind.TIMEOUT, f"timed out; {_ending(log)}")
    return _classify_exit(log, exit_code)


def names_unknown_option(cause: str | None) -> bool:
    """Tell whether a run failed because the program does not know an option at all, whatever its value."""
    return cause is not None and _UNKNOWN_OPTION.search(cause) is not None


QUOTED = 60
"""How much of an exception's text shows that a cause states it."""


_UNDERLINE = re.compile(r"\s*[~^]+\s*")
_MOST_INDENT = 8


def ending_lines(path: Path, cause: str | None, count: int, limit: int = LINE_LENGTH) -> list[str]:
    """Return the last lines of a log, or of the traceback behind the cause: launchers report below it, at length."""
    log = TrialLog(path)
    if not cause:
        return log.tail_lines(count, limit)
    text = log.text(MIB)
    root = root_cause(text)
    error = first_error(text, root.rank if root else None)
    if error is None or not error.lines or clean_line(error.text)[:QUOTED] not in cause:
        shown = _quoted(above_report(text).split("\n")[-_MAX_LINES:], limit)
        return list(filter(None, shown))[-count:]
    return _quoted(error.lines, limit)[-count:]


def _quoted(lines: Iterable[str], limit: int) -> list[str]:
    """Return lines as they are indented, without those with which Python underlines a part of another."""
    kept = (line for line in lines if not _UNDERLINE.fullmatch(line))
    return [" " * min(len(line) - len(line.lstrip(" ")), _MOST_INDENT) + clean_line(line, limit) for line in kept]


def hidden_failure(log: str, *, has_value: bool) -> Failure | None:
    """Return why a run failed although it exited with 0, or None.

    `bash train.sh` with a pipe inside hides the training's exit code. A run that has a value failed only where the log
    shows a failed allocation or torchrun's report after the last step: earlier allocations may have been survived.
    """
    if not has_value:
        failure = classify(log, 1)
        return None if failure is None or failure.kind is FailureKind.CRASH else failure
    end = after_steps(log)
    if _first_line(end, _DEVICE_MEMORY) or "ChildFailedError" in end:
        return classify(log, 1)
    return None


def shows_crash(log: str) -> bool:
    """Tell whether a program crashed without a traceback: a fault, or an exception of a rank or of its device."""
    if _first_line(log, _FAULTS):
        return True
    error = first_error(log)
    return error is not None and (error.rank is not None or _DEVICE_FAULT.search(error.text) is not None)


def _classify_exit(log: str, exit_code: int | None) -> Failure:
    """Classify a run that ended by itself without a failed allocation."""
    root = root_cause(log)
    code = "no exit code" if exit_code is None else f"exit code {exit_code}"
    if exit_code in (137, -9) or (root and root.exit_code == -9):
        who = root.who if root and root.exit_code == -9 else ""
        return _failure(FailureKind.HOST_OUT_OF_MEMORY, f"{who}killed by SIGKILL, most likely out of host memory")
    if exit_code in (126, 127):
        return _failure(FailureKind.NOT_FOUND, f"{code}: {_last_informative_line(log)}")
    if line := _first_line(log, _DISK):
        return _failure(FailureKind.DISK_FULL, line)
    if (line := _first_line(log, _USAGE)) and not has_steps(log):
        return _failure(FailureKind.CONFIGURATION, line)
    if asked := _asked_input(log):
        return _failure(FailureKind.CONFIGURATION, asked)
    root_rank = root.rank if root else None
    if error := first_error(log, root_rank):
        kind = FailureKind.CONFIGURATION if _is_configuration(error, log) else FailureKind.CRASH
        return _failure(kind, error.message(root_rank))
    # Where a rank crashed, the others only lost their connection to it.
    has_crashed = root is not None and root.exit_code in _FAULT_CODES
    if not has_crashed and (line := _first_line(log, _COMMUNICATION)):
        return _failure(FailureKind.COMMUNICATION, line)
    if root and (name := _signal_name(root.exit_code)):
        return _failure(FailureKind.KILLED, f"{root.who}killed by {name}: {_last_informative_line(log)}")
    if name := _signal_name(exit_code):
        return _failure(FailureKind.KILLED, f"killed by {name}: {_last_informative_line(log)}")
    if line := _first_line(log, _FAULTS):
        return _failure(FailureKind.CRASH, line)
    for kind, signs in ((FailureKind.NOT_FOUND, _SHELL_NOT_FOUND), (FailureKind.KILLED, _SHELL_KILLED)):
        if line := _first_line(log, signs):
            return _failure(kind, line)
    who = root.who if root else ""
    return _failure(FailureKind.CRASH, f"{who}{code}: {_last_informative_line(log)}")


def _asked_input(log: str) -> str | None:
    """Return where a program asked for input, which a trial has none of."""
    position = log.find(_NO_INPUT)
    if position < 0:
        return None
    places = list(_SOURCE_LINE.finditer(log, max(0, position - 4_096), position))
    where = f"{Path(places[-1][1]).name} asks for input ({split_prefix(places[-1][2])[1].strip()})" if places else ""
    return f"{where or 'the program asks for input'}, which a trial cannot give: put `echo ANSWER |` before the command"


def _ending(log: str) -> str:
    return f"the log ends with: {_last_informative_line(log)}" if log.strip() else "it printed nothing"


def _failure(kind: FailureKind, message: str) -> Failure:
    outcomes = {
        FailureKind.OUT_OF_MEMORY: Outcome.OOM,
        FailureKind.HOST_OUT_OF_MEMORY: Outcome.OOM,
        FailureKind.TIMEOUT: Outcome.TIMEOUT,
        FailureKind.SILENT: Outcome.TIMEOUT,
    }
    return Failure(outcome=outcomes.get(kind, Outcome.ERROR), kind=kind, message=clean_line(message))


def _first_line(log: str, signs: Sequence[_Sign]) -> str | None:
    """Return the first line with the first of the signs that is there, as `rank 3: ...` where its prefix has a rank.

    The source line in a traceback, which may contain the message too, counts where nothing else does.
    """
    for sign in signs:
        quoted: list[str] = []
        for position in occurrences(log, sign.needle):
            line = line_at(log, position)
            rank, rest = split_prefix(clean_line(line, 4096))
            if sign.pattern.search(rest):
                shown = rest if rank is None else f"rank {rank}: {rest}"
                if not split_prefix(line)[1].startswith(_SOURCE_INDENT):
                    return shown
                quoted.append(shown)
        if quoted:
            return quoted[0]
    return None


def _is_configuration(error: RankError, log: str) -> bool:
    """Tell whether an exception is about the options: raised before any step, with words of that kind."""
    if error.name != "AssertionError":
        is_worded_so = _ARGUMENT_WORDS.search(error.text) and not _DEVICE_FAULT.search(error.text)
        if error.name not in _CONFIGURATION_TYPES or not is_worded_so:
            return False
    # Steps anywhere in the log count: buffered lines may reach it after the traceback.
    return not has_steps(log)


def _signal_name(exit_code: int | None) -> str | None:
    """Return the signal behind an exit code: -11 of a process, 139 of a shell."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return f"signal {number} ({signal.Signals(number).name})" if number in set(signal.Signals) else None


def _last_informative_line(log: str) -> str:
    """Return the last line that names an error, else the last one with any text."""
    tail = [clean_line(line) for line in above_report(log)[-_TAIL_CHARACTERS:].split("\n")[-_MAX_LINES:]]
    lines = [line for line in tail if any(map(str.isalnum, line)) and not is_reported(line)]
    if not lines:
        return "the log is empty" if not log or log.isspace() else "the log has no readable line"
    return next((line for line in reversed(lines[-50:]) if _INFORMATIVE.search(line)), lines[-1])


_SIZE = r"([0-9.]{1,12}) ?([KMGT]i?B|bytes)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}", re.IGNORECASE)
# PyTorch 2.1 spells it "capacty"; releases before put the figure first.
_CAPACITY = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free\b", re.IGNORECASE)
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """The bytes that an out-of-memory message names, where it does."""

    tried_bytes: float | None = None
    capacity_bytes: float | None = None
    free_bytes: float | None = None

    @classmethod
    def of(cls, cause: str | None) -> FailedAllocation:
        """Read the message of a run."""
        found = [_bytes(pattern.search(cause or "")) for pattern in (_TRIED, _CAPACITY, _FREE)]
        return cls(tried_bytes=found[0], capacity_bytes=found[1], free_bytes=found[2])

    @property
    def needed_bytes(self) -> float | None:
        """Bytes in use plus those asked for, where they exceed the GPU's memory."""
        if self.tried_bytes is None or self.capacity_bytes is None or self.free_bytes is None:
            return None
        needed = self.capacity_bytes - self.free_bytes + self.tried_bytes
        # Fragmented memory refuses less than it has free: then the need is not known.
        return needed if needed > self.capacity_bytes else None


def reported_capacity(causes: Iterable[str | None]) -> float | None:
    """Return the memory of a GPU, from the messages of runs that ran out of it."""
    found = (FailedAllocation.of(cause).capacity_bytes for cause in causes)
    return max((capacity for capacity in found if capacity), default=None)


def _bytes(match: re.Match[str] | None) -> float | None:
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    try:
        return float(number) * 1024.0 ** _POWERS[unit[0].lower()]
    except ValueError:  # "1.2.3"
        return None


MAX_RUNS_WITHOUT_METRIC = 3
MAX_ALIKE_FAILURES = 3
MAX_LOST_IN_A_ROW = 3


def refuse_hopeless(study: Study) -> None:
    """Stop a study whose runs all end well without a value, or all fail for a cause that no layout fixes."""
    trials = study.trials
    if len(trials) >= MAX_RUNS_WITHOUT_METRIC and all(trial.failure == FailureKind.METRIC for trial in trials):
        last = trials[-1]
        raise UsageError(f"the first {len(trials)} trials ran to their end, but {last.cause} (see {last.folder})")
    _refuse_alike(study)
    # Where one machine after the other fails, further points would be lost too.
    lost = trials[-MAX_LOST_IN_A_ROW:]
    if len(lost) == MAX_LOST_IN_A_ROW and all(trial.failure == FailureKind.LOST for trial in lost):
        problem = f"the machine failed under {len(lost)} trials in a row, the last time: {lost[-1].cause}"
        raise SystemFaultError(f"{problem}; see to it and continue with --resume --retry-failed")


def _refuse_alike(study: Study) -> None:
    base, trials = study.baseline, study.trials
    if len(trials) < MAX_ALIKE_FAILURES or any(trial.ok for trial in trials):
        return
    # Out of memory, too slow or refused by a rule: another layout may fix each of these, but not a fault of the
    # program. The user's own command, where it runs first, shows such a fault by itself.
    causes = {_comparable_cause(trial) for trial in trials}
    if base is None and len(causes) == 1 and all(_is_no_fault_of_its_layout(trial) for trial in trials):
        raise EveryRunFailsAlike(f"the first {len(trials)} trials failed alike: {trials[-1].cause}")
    if (base is None or _is_mute(base)) and all(_is_mute(trial) for trial in trials):
        problem = f"none of the first {len(trials)} trials printed a line before its time was up"
        raise EveryRunFailsAlike(f"{problem}: run your own command by hand, or give it more time with --timeout")
    if all(names_unknown_option(trial.cause) for trial in trials):
        hint = "choose another --preset, or write {placeholders} where the values belong"
        raise EveryRunFailsAlike(f"the program does not take the preset's options: {trials[-1].cause}; {hint}")


def _is_mute(trial: Trial) -> bool:
    """Tell whether a run was ended by its time limit without having printed anything."""
    if trial.outcome is not Outcome.TIMEOUT or trial.folder is None:
        return False
    log = TrialFolder(trial.folder).log
    return not log.exists() or log.stat().st_size == 0


def _comparable_cause(trial: Trial) -> str | None:
    """Return a cause for comparison: without ranks, ports and addresses, which differ within one broken network."""
    if trial.cause is None or trial.failure != FailureKind.COMMUNICATION:
        return trial.cause
    return re.sub(r"^rank [0-9]+: |0x[0-9a-fA-F]+|[0-9]+", "#", trial.cause)


def _is_no_fault_of_its_layout(trial: Trial) -> bool:
    refused = trial.failure == FailureKind.CONFIGURATION and not named_axes(trial.cause or "")
    return refused or trial.failure in (FailureKind.CRASH, FailureKind.NOT_FOUND, FailureKind.COMMUNICATION)


def is_fault_of_the_command(trial: Trial) -> bool:
    """Tell whether a run failed for a reason that another layout does not change: anything but memory and time.

    A machine that failed, or a person who ended the run, says nothing about the command.
    """
    if trial.ok or trial.failure in (FailureKind.LOST, FailureKind.REVOKED, FailureKind.METRIC):
        return False
    return trial.outcome is Outcome.ERROR or trial.failure == FailureKind.SILENT
