"""The study on Optuna storage: every trial is written as it starts and as it ends, and opens in optuna-dashboard."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from zenith_tune.errors import StudyError
from zenith_tune.record.folder import StudyFolder, held_by
from zenith_tune.record.search import SEARCH_KEY, StudySearch
from zenith_tune.record.server.claims import Claims, TunerIdentity, create_once, run_key
from zenith_tune.record.server.url import database_path, is_server, one_at_a_time
from zenith_tune.record.storage import clear_errors, database_patience, open_storage
from zenith_tune.record.stored_trial import (
    RESULT,
    RUN,
    TWIN_OF,
    TrialFolders,
    refuse_unreadable,
    result_of,
    trial_view,
)
from zenith_tune.record.view import StudyHeader, TrialView
from zenith_tune.study.files import write_json
from zenith_tune.study.optuna_types import name_objective, quiet_optuna, to_distribution
from zenith_tune.study.parameters import Direction, Parameter, Value
from zenith_tune.study.trial import Outcome, RunKey, Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

T = TypeVar("T")

HEADER_KEY, TUNER_KEY = "zenithtune", "zenithtune_tuner"
"""The study's attributes in the database that hold its header, and which process tunes it where only one may."""


class StudyRecord:
    """The stored trials of one study; safe to use from several threads."""

    def __init__(
        self, url: str, study_name: str, folder: StudyFolder, notify: Callable[[str], None] = lambda line: None
    ) -> None:
        self.url = url
        self.study_name = study_name
        self.claims: Claims | None = None
        """What the study's other tuners must know of this one; None where a file lock keeps them off."""
        self._patience = database_patience(url, notify, has_worked=lambda: self._opened is not None)
        self._folder = folder
        self._folders = TrialFolders(database_path(url), folder.path)
        self._storage = open_storage(url)
        self._quiet = ExitStack()  # a connection that breaks is waited for, and reported by `notify`
        self._quiet.enter_context(quiet_optuna(logging.ERROR))
        self._lock = threading.Lock()
        self._opened: Study | None = None
        self._study_id = -1
        self._trial_ids: dict[int, int] = {}
        self._num_trials = 0
        self._is_holder = False
        self._keeping = threading.Lock()
        self._kept: dict[str, Any] = {}
        """The distributions that record.json has, by parameter."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep other tuners from making the same study meanwhile."""
        if not is_server(self.url):
            yield
            return
        with clear_errors(self.url), one_at_a_time(self._storage.engine):
            yield

    def exists(self) -> bool:
        studies = self._read("a header", self._storage.get_all_studies)
        return any(study.study_name == self.study_name for study in studies)

    def create(self, header: StudyHeader, direction: Direction) -> None:
        from optuna import create_study

        with self._lock, clear_errors(self.url):
            study = create_study(storage=self._storage, study_name=self.study_name, direction=direction.value)
            study.set_user_attr(HEADER_KEY, asdict(header))
            name_objective(study, header.evaluator)
        self._begin(study)
        self._keep(header, direction, {})

    def reopen(self, header: StudyHeader) -> None:
        """Continue a study, if it is the same one."""
        from optuna import load_study

        study = self._ask(lambda: load_study(study_name=self.study_name, storage=self._storage))
        self._begin(study)
        stored = self._ask(lambda: study.user_attrs).get(HEADER_KEY)
        # Killed between the study's creation and its header: there cannot be a trial yet.
        if stored is None and not self._trials():
            self._ask(lambda: study.set_user_attr(HEADER_KEY, asdict(header)))
            return
        known = StudyHeader.from_stored(stored, self.study_name)
        header.check_same(known, self.study_name)
        if header.options is not None and header.options != known.options:
            kept = replace(known, options=header.options)
            self._ask(lambda: study.set_user_attr(HEADER_KEY, asdict(kept)))
        self._trials()

    def hold(self) -> None:
        """Note that this process tunes the study; refuse where another does, whose lock file somebody removed."""
        own, stored = TunerIdentity.own(), self._ask(lambda: self._study.user_attrs).get(TUNER_KEY)
        holder = TunerIdentity(**stored) if isinstance(stored, dict) else own
        if holder != own and holder.machine == own.machine and not holder.is_gone():
            raise held_by(self.study_name, holder.pid)
        self._ask(lambda: self._study.set_user_attr(TUNER_KEY, asdict(own)))
        self._is_holder = True

    def search(self) -> StudySearch:
        return StudySearch.from_json(self._ask(lambda: self._study.user_attrs).get(SEARCH_KEY))

    def keep_search(self, search: StudySearch) -> None:
        self._ask(lambda: self._study.set_user_attr(SEARCH_KEY, asdict(search)))

    def start(
        self,
        params: Mapping[str, Value],
        space: Mapping[str, Parameter],
        run: RunKey,
        *,
        why: str = "",
        label: str = "",
    ) -> int:
        """Write a trial that is about to run; returns its number."""
        from optuna.trial import TrialState, create_trial

        stored: dict[str, Any] = {**run._asdict(), "why": why, "label": label, "study_folder": str(self._folder.path)}
        if self.claims is not None:
            stored["claim"] = self.claims.begin(run_key(run))
            stored["host"] = self.claims.identity.host
        distributions = {name: to_distribution(space[name]) for name in params}
        self._keep_space(distributions)
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(params),
            distributions=distributions,
            # One attribute, not three: each costs the database several statements.
            user_attrs={RUN: stored},
        )
        with self._lock, clear_errors(self.url):
            try:
                if self.claims is not None:
                    return create_once(self._storage, self._study, self._study_id, template, self._patience.call)
                trial_id = self._patience.call(lambda: self._storage.create_new_trial(self._study_id, template))
            except StudyError:
                raise
            except ValueError as error:
                problem = f"study {self.study_name!r} was made with another search space ({error})"
                raise StudyError(problem, hint="choose another --study-name") from error
            # The study is locked for this tuner, so the numbers are known without asking the database.
            number = self._num_trials
            self._num_trials += 1
            self._trial_ids[number] = trial_id
            return number

    def _keep_space(self, distributions: Mapping[str, BaseDistribution]) -> None:
        """Write the values that a parameter may have, as soon as one is tried."""
        from optuna.distributions import distribution_to_json

        with self._keeping:
            if distributions.keys() <= self._kept.keys():
                return
            header = StudyHeader.from_stored(self._ask(lambda: self._study.user_attrs).get(HEADER_KEY), self.study_name)
            new = {name: json.loads(distribution_to_json(each)) for name, each in distributions.items()}
            self._keep(header, Direction(self._study.direction.name.lower()), {**self._kept, **new})

    def _keep(self, header: StudyHeader, direction: Direction, distributions: Mapping[str, Any]) -> None:
        """Write what a lost database is rebuilt from, together with the trials' own files."""
        self._kept = dict(distributions)
        content = {"header": asdict(header), "direction": direction.value, "distributions": self._kept}
        self._folder.make()
        write_json(self._folder.record, content)

    def finish(self, trial: Trial) -> bool:
        """Write how a trial ended; its state changes last, so that a finished trial is a whole one.

        False where it is not this tuner's any more: another, which had not heard from this one, has ended it.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        number, result = trial.number, result_of(trial)
        values = [trial.value] if trial.value is not None else None
        state = TrialState.COMPLETE if values else TrialState.FAIL

        def write() -> bool:
            if number not in self._trial_ids:
                found = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
                self._trial_ids[number] = found
            trial_id = self._trial_ids[number]
            try:
                self._storage.set_trial_user_attr(trial_id, RESULT, result)
                self._storage.set_trial_state_values(trial_id, state, values)
            except UpdateFinishedTrialError:  # by a try that broke off, or by another tuner
                return bool(self._storage.get_trial_user_attrs(trial_id).get(RESULT) == json.loads(json.dumps(result)))
            return True

        is_written = self._ask(write)
        if is_written and self.claims is not None:
            self.claims.end(run_key(trial.key), is_free=trial.outcome is Outcome.CANCELLED)
        return is_written

    def free_failed(self, trial: Trial) -> None:
        """Let a trial that failed run again, under whichever tuner comes first."""
        if self.claims is not None:
            for view in self._views(lambda frozen: frozen.number == trial.number):
                self.claims.free_failed(run_key(trial.key), view.claim)

    def finished(self, *, besides: Container[int] = ()) -> list[Trial]:
        """Return every finished trial in order, but those of some numbers."""
        views = self._views(lambda frozen: frozen.state.is_finished() and frozen.number not in besides)
        return [view.trial for view in views]

    def unfinished(self) -> list[Trial]:
        """Return the trials that a killed tuner left behind."""
        return [view.trial for view in self._views(lambda frozen: not frozen.state.is_finished())]

    def trials_of_claim(self, claim: str) -> list[TrialView]:
        """Return the trials that were written under a claim; more than one if a connection broke."""
        return self._views(lambda frozen: frozen.user_attrs.get(RUN, {}).get("claim") == claim)

    def close(self) -> None:
        """Let go of the study and its database."""
        if self._is_holder:
            with suppress(Exception):  # a process that has ended holds nothing, whatever the database says
                self._storage.set_study_user_attr(self._study_id, TUNER_KEY, None)
        self._storage.remove_session()
        self._storage.engine.dispose()
        self._quiet.close()

    def _begin(self, study: Study) -> None:
        self._opened = study
        self._study_id = self._ask(lambda: self._storage.get_study_id_from_name(self.study_name))
        if is_server(self.url):
            self.claims = Claims(self._storage.engine, self._study_id, self.url, self._patience)

    @property
    def _study(self) -> Study:
        if self._opened is None:
            raise StudyError(f"study {self.study_name!r} is not open")
        return self._opened

    def _views(self, is_wanted: Callable[[FrozenTrial], bool]) -> list[TrialView]:
        trials = self._trials()
        return [self._view(frozen, trials) for frozen in trials if is_wanted(frozen)]

    def _trials(self) -> list[FrozenTrial]:
        """Return all trials; Optuna reads those that had ended by the last call only once."""
        trials = self._read("the trials", lambda: self._study.get_trials(deepcopy=False))
        self._num_trials = len(trials)
        return [trial for trial in trials if TWIN_OF not in trial.user_attrs]

    def _view(self, frozen: FrozenTrial, trials: list[FrozenTrial]) -> TrialView:
        with refuse_unreadable(f"trial {frozen.number} of study {self.study_name!r}"):
            return trial_view(frozen, self._folders, trials)

    def _read(self, what: str, action: Callable[[], T]) -> T:
        with refuse_unreadable(f"{what} of study {self.study_name!r}"):
            return self._ask(action)

    def _ask(self, action: Callable[[], T]) -> T:
        """Return what the storage answers; one that is away is waited for."""
        with self._lock, clear_errors(self.url):
            return self._patience.call(action)
