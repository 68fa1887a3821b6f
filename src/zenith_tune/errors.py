"""The exception tree.

ZenithTuneError
├── UsageError (also a ValueError)         bad input: one line, exit code 2
│   ├── UnknownNameError                   a preset, strategy, evaluator or runner that nobody registered
│   ├── CommandError                       a training command with no safe place for options
│   ├── ModelConfigError                   a model whose config.json cannot be had or read
│   └── StudyError                         a study that cannot be opened, resumed or shared
├── SystemFaultError                       the system refuses: the study stops, what is recorded stays
│   └── DiskFullError                      no space left while writing
└── StudyLimitReached                      the study is over, in good order
    ├── TrialExhausted                     the budget of trials is spent
    ├── EveryRunFailsAlike                 neither options nor layout are the reason
    ├── OptionsWithoutEffect               what is tuned does not reach the program
    ├── OwnCommandFails                    the user's own command fails for another reason than memory
    ├── ConsecutiveDuplicateLimitExceeded  a strategy repeats itself
    └── ConsecutivePruneLimitExceeded      a strategy proposes nothing but illegal points

StudyInterrupted (a KeyboardInterrupt)     a signal asked the study to stop
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZenithTuneError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(ZenithTuneError, ValueError):
    """Bad input, in one line: what is wrong, with the values, and how to fix it.

    >>> error = UsageError("tp must divide 8, but got 3", hint="give tp=4")
    >>> print(error, "|", error.hint)
    tp must divide 8, but got 3: give tp=4 | give tp=4
    """

    def __init__(self, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{problem}: {hint}" if hint else problem)
        self.problem = problem
        self.hint = hint


class UnknownNameError(UsageError):
    """An unknown name, with the known ones and a guess which was meant."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else "."
        super().__init__(f"unknown {kind} {name!r}{guess} Known: {', '.join(names) or 'none'}.")


class MissingPackageError(UsageError):
    """Something of another package of this project, which is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} is in the package zenith-{extra}, which is not installed",
            hint=f"pip install 'zenith-tune[{extra}]', or ./{extra} in a clone",
        )


class CommandError(UsageError):
    """A training command that cannot be edited safely."""


class ModelConfigError(UsageError):
    """A model whose config.json cannot be found, fetched or understood."""


class StudyError(UsageError):
    """A study that cannot be opened, resumed or shared."""


class SystemFaultError(ZenithTuneError):
    """A system that refused to start, read or write something for too long; no trial is to blame."""


class DiskFullError(SystemFaultError):
    """A write that failed for lack of space; what was recorded before stays readable."""


class StudyLimitReached(ZenithTuneError):  # noqa: N818 - the names below it are a documented contract
    """The regular end of a study."""


class TrialExhausted(StudyLimitReached):
    """A trial budget that is used up."""


class EveryRunFailsAlike(StudyLimitReached):
    """A study whose runs all fail for one reason that no other point can avoid."""


class OwnCommandFails(StudyLimitReached):
    """A study whose first run, of the user's own command, fails for another reason than memory."""


class OptionsWithoutEffect(StudyLimitReached):
    """A study whose runs show that its options do not reach the program."""


class ConsecutiveDuplicateLimitExceeded(StudyLimitReached):
    """A strategy that repeats itself too often."""


class ConsecutivePruneLimitExceeded(StudyLimitReached):
    """A strategy that proposes nothing but pruned points."""


class StudyInterrupted(KeyboardInterrupt):
    """The signal that asked the study to stop, on its way up to whoever started it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
