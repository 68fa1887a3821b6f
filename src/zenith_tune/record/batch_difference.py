"""Whether the user's own command trains another global batch than the trials: then the gain is not the layout's alone.

A larger batch has fewer gradients to sum and fewer bubbles for its samples, so it is faster whatever the layout.
"""

from __future__ import annotations

from zenith_tune.errors import CommandError
from zenith_tune.evaluators.base import BATCH
from zenith_tune.shell import CommandLine
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial

OPTION = "--global-batch-size"
_MOST_DIGITS = 12


def batch_note(study: Study) -> str:
    """Return a line to stand beside the gain; nothing where both train the same batch, or one is not known."""
    base, best = study.baseline, study.best
    if base is None or best is None or not base.ok:
        return ""
    own, theirs = trained_batch(base), trained_batch(best)
    if own is None or theirs is None or own == theirs:
        return ""
    return f"your command trains batch {own}, the trials {theirs}: the gain is not of the layout alone"


def trained_batch(trial: Trial) -> int | None:
    """Return the samples of a trial's step: as its log told them, else as its command says."""
    told = trial.extra.get(BATCH)
    if isinstance(told, int) and not isinstance(told, bool) and told > 0:
        return told
    try:
        said = CommandLine(trial.command).get(OPTION) or ""
    except CommandError:
        return None
    return int(said) or None if said.isascii() and said.isdecimal() and len(said) <= _MOST_DIGITS else None
