"""Who runs what: the tables that several tuners of one study share on a database server.

A claim says that one tuner runs, or has run, what an identity stands for. It is made before the trial is, in one
transaction that also counts the budget, and is taken back when the trial is cancelled. A tuner that no longer shows
itself has its open claims taken from it one by one, each by whoever comes first.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zenith_tune.errors import TrialExhausted
from zenith_tune.record.storage import clear_errors
from zenith_tune.record.stored_trial import RUN, TWIN_OF
from zenith_tune.study.faults import RetryPolicy
from zenith_tune.study.trial import RunKey

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial
    from sqlalchemy import Connection, Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerIdentity:
    """The identity of a tuner, distinct also from a later process with the same pid."""

    host: str
    machine: str
    """Where its pid means something: this boot of the kernel, the container in it, and a user who may see it."""
    pid: int
    start_ticks: int

    @classmethod
    def own(cls) -> TunerIdentity:
        fields = _stat(os.getpid())
        ticks = int(fields[_START_TICKS]) if fields else 0
        return cls(host=socket.gethostname(), machine=_machine(), pid=os.getpid(), start_ticks=ticks)

    def is_gone(self) -> bool:
        """Tell whether the tuner has surely ended; of one on another machine that cannot be seen."""
        if not self.machine or self.machine != _machine():
            return False
        fields = _stat(self.pid)
        return not fields or int(fields[_START_TICKS]) != self.start_ticks or fields[_STATE] in "ZX"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} uid {os.getuid()}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        # The name, in brackets before them, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


_STATE, _START_TICKS = 0, 19  # fields of /proc/PID/stat, counted from behind the name
T = TypeVar("T")

_SHOW = """insert into zenithtune_tuners (tuner, study_id, host, machine, pid, start_ticks, seen)
values (:tuner, :study, :host, :machine, :pid, :start_ticks, now()) on conflict (tuner) do update set seen = now()"""
# A server that was down has seen no sign of life meanwhile: that makes no tuner dead.
_IS_STALE = "now() - greatest(t.seen, pg_postmaster_start_time()) > make_interval(secs => :stale)"
_OPEN = f"""select c.run, c.claim, c.tuner, t.host, t.machine, t.pid, t.start_ticks, {_IS_STALE} as is_stale
from zenithtune_claims c left join zenithtune_tuners t on t.tuner = c.tuner
where c.study_id = :study and not c.is_over and c.tuner <> :tuner"""
_FORGET = "delete from zenithtune_tuners where study_id = :study and seen < now() - interval '1 day'"
_INSERT = """insert into zenithtune_claims (study_id, run, claim, tuner, is_baseline)
values (:study, :run, :claim, :tuner, :is_baseline)"""
_TURN = 0x7A74
"""The kind of the lock under which the claims of a study are counted."""
_ONE = "where study_id = :study and run = :run"
_MINE = f"{_ONE} and tuner = :tuner and not is_over"


class OpenClaim(NamedTuple):
    """A claim whose trial has not ended, of a tuner that is gone."""

    run: str
    claim: str


def run_key(run: RunKey) -> str:
    """Return the name of a run in the tables of claims: identities are whole commands, of any length."""
    again = "" if run.rerun_of is None else f"\nagain {run.rerun_of}"
    return hashlib.sha256(f"{'baseline' if run.is_baseline else 'point'}\n{run.identity}{again}".encode()).hexdigest()


class Claims:
    """The claims of one tuner on one study."""

    def __init__(self, engine: Engine, study_id: int, url: str, patience: RetryPolicy) -> None:
        self.tuner = uuid.uuid4().hex
        self.identity = TunerIdentity.own()
        self._engine = engine
        self._url, self._patience = url, patience
        self._study_id = study_id
        self._claims: dict[str, str] = {}

    def join(self) -> None:
        """Join the study's tuners, and forget those that were killed long ago."""
        self._write(_SHOW, asdict(self.identity))
        self._write(_FORGET, {})

    def show(self) -> None:
        """Show the others that this tuner is alive; fails where the server is away."""
        with self._engine.begin() as connection:
            self._execute(connection, _SHOW, asdict(self.identity))

    def leave(self) -> None:
        """Give up what was claimed and never begun, and leave; what was begun is left to the others."""
        with self._engine.begin() as connection:
            for run in self._claims:
                self._execute(connection, f"delete from zenithtune_claims {_MINE}", {"run": run})
            self._execute(connection, "delete from zenithtune_tuners where tuner = :tuner")

    def take(self, run: str, limit: int | None, *, is_baseline: bool = False) -> bool:
        """Claim a run for this tuner; False where somebody has it. Raises TrialExhausted if the budget is spent."""
        claim = uuid.uuid4().hex

        def insert() -> bool:
            with self._engine.begin() as connection:
                # Counted and claimed by one tuner at a time: two must not spend the last trial.
                self._execute(connection, f"select pg_advisory_xact_lock({_TURN}, :study)")
                found = self._execute(connection, f"select claim from zenithtune_claims {_ONE}", {"run": run}).first()
                if found is not None:
                    return bool(found.claim == claim)  # by a try that broke off
                count = "select count(*) from zenithtune_claims where study_id = :study and not is_baseline"
                if limit is not None and self._execute(connection, count).scalar() >= limit:
                    raise TrialExhausted(f"the budget of {limit} trials is spent")
                values = {"run": run, "claim": claim, "is_baseline": is_baseline}
                self._execute(connection, _INSERT, values)
                return True

        is_mine = self._call(insert)
        if is_mine:
            self._claims[run] = claim
        return is_mine

    def holds(self, run: str) -> bool:
        """Tell whether this tuner has claimed a run, and not begun it."""
        return run in self._claims

    def begin(self, run: str) -> str:
        """Return the name under which a claimed run goes into the record."""
        return self._claims.pop(run)

    def end(self, run: str, *, is_free: bool) -> None:
        """Close a claim whose trial has ended, or give it up for somebody to run again."""
        what = "delete from zenithtune_claims" if is_free else "update zenithtune_claims set is_over = true"
        self._write(f"{what} {_MINE}", {"run": run})
        self._claims.pop(run, None)

    def free_failed(self, run: str, claim: str) -> None:
        """Give up the claim of a trial that failed and is to run again, unless it does already."""
        which = f"{_ONE} and claim = :claim and is_over"
        self._write(f"delete from zenithtune_claims {which}", {"run": run, "claim": claim})

    def taken(self, runs: Iterable[str]) -> set[str]:
        sql = "select run from zenithtune_claims where study_id = :study and run = any(:runs)"
        return {row.run for row in self._rows(sql, {"runs": list(runs)})}

    def adopt(self, *, stale_s: float | None) -> list[OpenClaim]:
        """Take over the open claims of tuners that are gone; None: only of those that surely are."""
        adopted = []
        for row in self._rows(_OPEN, {"stale": stale_s or 0.0}):
            tuner = TunerIdentity(host=row.host, machine=row.machine, pid=row.pid, start_ticks=row.start_ticks)
            is_gone = row.machine is None or tuner.is_gone() or (stale_s is not None and row.is_stale)
            if is_gone and self._take_over(row.run, row.tuner):
                adopted.append(OpenClaim(row.run, row.claim))
        return adopted

    def _take_over(self, run: str, tuner: str) -> bool:
        def swap() -> bool:
            with self._engine.begin() as connection:
                values, take_over = {"run": run, "dead": tuner}, "update zenithtune_claims set tuner = :tuner"
                self._execute(connection, f"{take_over} {_ONE} and tuner = :dead and not is_over", values)
                self._execute(connection, "delete from zenithtune_tuners where tuner = :dead", values)
                row = self._execute(connection, f"select tuner from zenithtune_claims {_ONE}", {"run": run}).first()
                return row is not None and row.tuner == self.tuner

        return self._call(swap)

    def _rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        def read() -> list[Any]:
            with self._engine.begin() as connection:
                return list(self._execute(connection, sql, values))

        return self._call(read)

    def _write(self, sql: str, values: Mapping[str, Any]) -> None:
        def write() -> None:
            with self._engine.begin() as connection:
                self._execute(connection, sql, values)

        self._call(write)

    def _call(self, action: Callable[[], T]) -> T:
        with clear_errors(self._url):
            return self._patience.call(action)

    def _execute(self, connection: Connection, sql: str, values: Mapping[str, Any] | None = None) -> Any:
        from sqlalchemy import text

        return connection.execute(text(sql), {"study": self._study_id, "tuner": self.tuner, **(values or {})})


def create_once(
    storage: RDBStorage,
    study: Study,
    study_id: int,
    template: FrozenTrial,
    call: Callable[[Callable[[], list[int]]], list[int]],
) -> int:
    """Write a trial under its claim, and return its number.

    A commit whose answer is lost may have come through; Optuna tries it again by itself without looking, and so a
    trial can be there twice. The first is the trial; the others are ended, and marked so that they do not count.
    """
    import sqlalchemy
    from optuna.trial import TrialState

    claim = template.user_attrs[RUN]["claim"]
    broken: list[Any] = []

    def written() -> list[FrozenTrial]:
        trials = study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.user_attrs.get(RUN, {}).get("claim") == claim]

    def create() -> list[int]:
        found = written() if broken else []
        if not found:
            trial_id = storage.create_new_trial(study_id, template_trial=template)
            if not broken:
                return [storage.get_trial_number_from_id(trial_id)]
            found = written()
        for twin in found[1:]:
            if not twin.state.is_finished():
                twin_id = storage.get_trial_id_from_study_id_trial_number(study_id, twin.number)
                storage.set_trial_user_attr(twin_id, TWIN_OF, found[0].number)
                storage.set_trial_state_values(twin_id, TrialState.FAIL)
        return [trial.number for trial in found]

    def note(context: Any) -> None:
        broken.append(context)

    sqlalchemy.event.listen(storage.engine, "handle_error", note)
    try:
        return call(create)[0]
    finally:
        sqlalchemy.event.remove(storage.engine, "handle_error", note)
