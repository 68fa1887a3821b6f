"""What a probe that was killed leaves: ranks that train for ever, and logs with their secrets in clear."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from zenith_tune.calibrate.probed_runs import FILE_NAME
from zenith_tune.errors import StudyError
from zenith_tune.record.lock import StudyLock
from zenith_tune.runners.base import Runner
from zenith_tune.shell.secret_names import shaped_secrets
from zenith_tune.shell.secrets import mask_file
from zenith_tune.study.files import TrialFolder, write_json
from zenith_tune.study.trial import Outcome
from zenith_tune.study.trial_log import TrialLog
from zenith_tune.units import MIB

MOST_LOG_BYTES = 4 * MIB
"""Of a log in which secrets are sought by their shape alone."""


def probe_lock(folder: Path) -> StudyLock:
    """Return what a probe holds of its folder for as long as it lives, however it ends."""
    return StudyLock(folder / FILE_NAME, "probe")


def end_leftovers(output_dir: Path, runner: Runner, secrets: Sequence[str]) -> list[Path]:
    """End the ranks of probes in a folder that were killed, mask their logs, and return those probes' folders.

    A probe that runs holds its lock and is left alone. What the command of a killed one held is known no more:
    `secrets` are those of this one, which is mostly the same, and those that show by their shape are found too.
    """
    found = []
    for folder in sorted(output_dir.glob("probe-*")):
        if not any(_cut_off(folder)):
            continue
        lock = probe_lock(folder)
        # Somebody holds it, or it is not ours to write.
        with contextlib.suppress(StudyError, PermissionError):
            lock.acquire()
            try:
                for files in _cut_off(folder):  # looked at again, now that nobody else ends them
                    _end(files, runner, secrets)
                found.append(folder)
            finally:
                lock.release()
    return found


def _cut_off(folder: Path) -> Iterator[TrialFolder]:
    """Yield the ranks that were started and whose end nobody wrote down."""
    real = Path(os.path.realpath(folder))
    for path in sorted(folder.glob("layout-*/stage-*")):
        files, is_own = TrialFolder(path), Path(os.path.realpath(path)) == real.joinpath(*path.parts[-2:])
        # What a link leads to is not this probe's. Where nobody may look, os.path sees nothing and pathlib raises.
        if is_own and os.path.lexists(files.command) and not os.path.lexists(files.trial):
            yield files


def _end(files: TrialFolder, runner: Runner, secrets: Sequence[str]) -> None:
    runner.recover(files.path)
    mask_file(files.log, [*secrets, *shaped_secrets(TrialLog(files.log).text(MOST_LOG_BYTES))])
    write_json(files.trial, {"outcome": Outcome.CANCELLED, "cause": "its probe was cut off"})
