"""The study on Optuna storage: every trial is written as it starts and as it ends, and opens in optuna-dashboard."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zenith_tune.errors import StudyError
from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.search import NUMBERS, SEARCH_KEY, TEXTS, StudySearch, finite, measured
from zenith_tune.record.server.claims import TWIN_OF, Claims, create_once, run_key
from zenith_tune.record.server.patience import RetryPolicy
from zenith_tune.record.server.url import is_server, one_at_a_time
from zenith_tune.record.storage import clear_errors, open_storage
from zenith_tune.study.optuna_types import quiet_optuna, to_distribution
from zenith_tune.study.parameters import Direction, Parameter, Value
from zenith_tune.study.trial import Outcome, Trial

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

T = TypeVar("T")

HEADER_KEY = "zenithtune"
_RUN = "run"
_RESULT = "result"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHeader:
    """Hold what makes two trials comparable: a study goes on only under the same header."""

    preset: str
    args: dict[str, str]
    command: str
    evaluator: str

    @classmethod
    def from_stored(cls, stored: dict[str, Any], study_name: str) -> StudyHeader:
        """Return the header that a database holds."""
        try:
            return cls(**stored)
        except TypeError:
            raise StudyError(
                f"study {study_name!r} is not one of zenithtune's", hint="choose another --study-name"
            ) from None

    def check_same(self, other: StudyHeader, study_name: str) -> None:
        """Refuse to go on with a study of another preset, command or objective."""
        for name, mine in asdict(self).items():
            theirs = getattr(other, name)
            if mine != theirs:
                how = " (--objective NAME, or --evaluator)" if name == "evaluator" else ""
                raise StudyError(
                    f"study {study_name!r} was made with {name} {theirs!r}, not {mine!r}: its trials cannot be "
                    f"compared; give the same {name}{how}, or choose another --study-name"
                )


class StudyRecord:
    """Keep the trials of one study; safe to use from several threads."""

    def __init__(
        self, url: str, study_name: str, folder: StudyFolder, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.url = url
        self.study_name = study_name
        self.claims: Claims | None = None
        """What the study's other tuners must know of this one; None where a file lock keeps them off."""
        self._patience = RetryPolicy(url, tell) if is_server(url) else None
        self._folder = folder
        self._storage = open_storage(url)
        self._lock = threading.Lock()
        self._study_id: int | None = None
        self._trial_ids: dict[int, int] = {}
        self._claim_names: dict[int, str] = {}
        self._num_trials = 0

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep other tuners from making the same study meanwhile."""
        if self._patience is None:
            yield
            return
        with clear_errors(self.url), one_at_a_time(self._storage.engine):
            yield

    def exists(self) -> bool:
        """Tell whether the study is there already."""
        try:
            studies = self._ask(self._storage.get_all_studies)
        except ValueError as error:
            raise self._changed("a header", error) from error
        return any(study.study_name == self.study_name for study in studies)

    def create(self, header: StudyHeader, direction: Direction) -> None:
        """Start a new study."""
        from optuna.study import StudyDirection

        with self._lock, clear_errors(self.url), quiet_optuna():
            study_id = self._storage.create_new_study([StudyDirection[direction.name]], self.study_name)
            self._storage.set_study_user_attr(study_id, HEADER_KEY, asdict(header))
        self._begin(study_id)

    def reopen(self, header: StudyHeader) -> None:
        """Go on with a study, if it is the same one."""
        study_id = self._ask(lambda: self._storage.get_study_id_from_name(self.study_name))
        stored = self._ask(lambda: self._storage.get_study_user_attrs(study_id)).get(HEADER_KEY)
        self._begin(study_id)
        if stored is None:
            # Killed between the study's creation and its header: there cannot be a trial yet.
            if self._frozen_trials():
                raise StudyError(
                    f"study {self.study_name!r} is not one of zenithtune's", hint="choose another --study-name"
                )
            self._ask(lambda: self._storage.set_study_user_attr(study_id, HEADER_KEY, asdict(header)))
            return
        header.check_same(StudyHeader.from_stored(stored, self.study_name), self.study_name)
        self._frozen_trials()

    def search(self) -> StudySearch:
        """Return how the study was searched so far."""
        stored = self._ask(lambda: self._storage.get_study_user_attrs(self._require_study()))
        return StudySearch.from_json(stored.get(SEARCH_KEY))

    def keep_search(self, search: StudySearch) -> None:
        """Write how the study is searched."""
        content = search.as_json()
        self._ask(lambda: self._storage.set_study_user_attr(self._require_study(), SEARCH_KEY, content))

    def _begin(self, study_id: int) -> None:
        self._study_id = study_id
        if self._patience is not None:
            self.claims = Claims(self._storage.engine, study_id, self._patience)

    def start(
        self,
        params: Mapping[str, Value],
        space: Mapping[str, Parameter],
        identity: str,
        *,
        is_baseline: bool = False,
        why: str = "",
        label: str = "",
    ) -> int:
        """Write a trial that is about to run; returns its number."""
        from optuna.trial import TrialState, create_trial

        run: dict[str, Any] = {"identity": identity, "is_baseline": is_baseline, "why": why, "label": label}
        run["study_folder"] = str(self._folder.path)
        if self.claims is not None:
            run["claim"] = self.claims.begin(run_key(identity, is_baseline=is_baseline))
            run["host"] = self.claims.identity.host
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(params),
            distributions={name: to_distribution(space[name]) for name in params},
            # One attribute, not three: each costs the database several statements.
            user_attrs={_RUN: run},
        )
        with self._lock, clear_errors(self.url), self._same_choices():
            if self.claims is not None:
                study_id, claim = self._require_study(), run["claim"]
                row = create_once(self._storage, study_id, template, self.claims, claim, self._call)
                trial_id, number = row.trial_id, row.number
            else:
                trial_id = self._storage.create_new_trial(self._require_study(), template_trial=template)
                # The study is locked for this tuner, so the numbers are known without asking the database.
                number = self._num_trials
            self._num_trials += 1
            self._trial_ids[number] = trial_id
            return number

    @contextmanager
    def _same_choices(self) -> Iterator[None]:
        try:
            yield
        except StudyError:
            raise
        except ValueError as error:
            raise StudyError(
                f"study {self.study_name!r} was made with another search space ({error})",
                hint="choose another --study-name",
            ) from error

    def finish(self, trial: Trial) -> bool:
        """Write how a trial ended; its state changes last, so that a finished trial is a whole one.

        False where it is not this tuner's any more: another, which had not heard from this one, has ended it.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        if trial.number is None:
            raise ValueError("only a trial that was started can be finished")
        stored = {name: getattr(trial, name) for name in (*TEXTS, *NUMBERS)}
        result = {"outcome": str(trial.outcome), "command": trial.command, **stored, "extra": dict(trial.extra)}
        values = [trial.value] if trial.value is not None else None
        state = TrialState.COMPLETE if values else TrialState.FAIL
        number = trial.number

        def write() -> bool:
            trial_id = self._trial_id(number)
            try:
                self._storage.set_trial_user_attr(trial_id, _RESULT, result)
                self._storage.set_trial_state_values(trial_id, state, values)
            except UpdateFinishedTrialError:  # by a try that broke off, or by another tuner
                return bool(self._storage.get_trial_user_attrs(trial_id).get(_RESULT) == json.loads(json.dumps(result)))
            return True

        is_written = self._ask(write)
        if is_written and self.claims is not None:
            run = run_key(trial.identity, is_baseline=trial.is_baseline)
            self.claims.end(run, is_free=trial.outcome is Outcome.CANCELLED)
        return is_written

    def free_failed(self, trial: Trial) -> None:
        """Let a trial that failed run again, under whichever tuner comes first."""
        name = self._claim_names.get(trial.number or 0)
        if self.claims is not None and name is not None:
            self.claims.free_failed(run_key(trial.identity, is_baseline=trial.is_baseline), name)

    def trial(self, trial_id: int) -> Trial:
        """Return one trial by the database's own number for it."""
        return self._to_trial(self._ask(lambda: self._storage.get_trial(trial_id)))

    def finished(self) -> list[Trial]:
        """Return every finished trial, in order."""
        return [self._to_trial(frozen) for frozen in self._frozen_trials() if frozen.state.is_finished()]

    def unfinished(self) -> list[Trial]:
        """Return the trials that a killed tuner left behind."""
        return [self._to_trial(frozen) for frozen in self._frozen_trials() if not frozen.state.is_finished()]

    def close(self) -> None:
        """Let go of the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _frozen_trials(self) -> list[FrozenTrial]:
        try:
            trials = self._ask(lambda: self._storage.get_all_trials(self._require_study()))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._changed("the trials", error) from error
        self._num_trials = len(trials)
        return [trial for trial in trials if TWIN_OF not in trial.user_attrs]

    def _ask(self, action: Callable[[], T]) -> T:
        """Return what the storage answers; a server that is away is waited for."""
        with self._lock, clear_errors(self.url):
            return self._call(action)

    def _call(self, action: Callable[[], T]) -> T:
        return action() if self._patience is None else self._patience.call(action)

    def _trial_id(self, number: int) -> int:
        if number not in self._trial_ids:
            study_id = self._require_study()
            self._trial_ids[number] = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        return self._trial_ids[number]

    def _require_study(self) -> int:
        if self._study_id is None:
            raise StudyError(f"study {self.study_name!r} is not open")
        return self._study_id

    def _to_trial(self, frozen: FrozenTrial) -> Trial:
        try:
            return self._read_trial(frozen)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._changed(f"trial {frozen.number}", error) from error

    def _changed(self, what: str, error: Exception) -> StudyError:
        problem = f"{what} of study {self.study_name!r} cannot be read ({type(error).__name__}: {error})"
        return StudyError(f"{problem}: its database was changed by something else; choose another --study-name")

    def _read_trial(self, frozen: FrozenTrial) -> Trial:
        result: dict[str, Any] = dict(frozen.user_attrs.get(_RESULT, {}))
        run: dict[str, Any] = frozen.user_attrs.get(_RUN, {})
        if "claim" in run:
            self._claim_names[frozen.number] = run["claim"]
        outcome = Outcome(result.get("outcome", Outcome.CANCELLED))
        return Trial(
            params=frozen.params,
            outcome=outcome,
            value=finite("value", frozen.value) if outcome is Outcome.OK else None,
            number=frozen.number,
            command=result.get("command", ""),
            identity=run.get("identity", ""),
            folder=self._trial_folder(frozen),
            is_baseline=run.get("is_baseline", False),
            why=run.get("why", ""),
            extra=result.get("extra", {}),
            **measured(result),
        )

    def _trial_folder(self, frozen: FrozenTrial) -> Path:
        # A trial stays where it ran, also when the study goes on under another --output-dir.
        study_folder = Path(frozen.user_attrs.get(_RUN, {}).get("study_folder", self._folder.path))
        return StudyFolder(study_folder.parent, study_folder.name).trial(frozen.number).path
