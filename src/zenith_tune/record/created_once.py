"""Writes a trial exactly once, also when the connection breaks while it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

    from zenith_tune.record.server.claims import Claims, TrialRow


TWIN_OF = "twin_of"
"""The attribute of a trial that was written once too often; they cannot be deleted, for Optuna numbers by counting."""


def create_once(
    storage: RDBStorage,
    study_id: int,
    template: FrozenTrial,
    claims: Claims,
    claim: str,
    call: Callable[[Callable[[], list[TrialRow]]], list[TrialRow]],
) -> TrialRow:
    """Write a trial under a claim, and return where it is.

    A commit whose answer is lost may have come through; Optuna tries it again by itself without looking, and so a
    trial can be there twice. The first is the trial; the others are ended, and marked so that nobody counts them.
    """
    import sqlalchemy
    from optuna.trial import TrialState

    broken: list[Any] = []

    def create() -> list[TrialRow]:
        found = claims.trials_of(claim) if broken else []
        if not found:
            trial_id = storage.create_new_trial(study_id, template_trial=template)
            found = claims.trials_of(claim) if broken else [claims.trial(trial_id)]
        for twin in found[1:]:
            if not twin.has_ended:
                storage.set_trial_user_attr(twin.trial_id, TWIN_OF, found[0].number)
                storage.set_trial_state_values(twin.trial_id, TrialState.FAIL)
        return found

    def note(context: Any) -> None:
        broken.append(context)

    sqlalchemy.event.listen(storage.engine, "handle_error", note)
    try:
        return call(create)[0]
    finally:
        sqlalchemy.event.remove(storage.engine, "handle_error", note)
