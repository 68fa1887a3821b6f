"""The tables on a database server that are not Optuna's: the tuners of each study, and what they have claimed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine

_TURN = 0x7A656E697468  # the number of the lock under which tables and studies are made

_TABLES = (
    """create table if not exists zenithtune_tuners (
    tuner varchar(32) primary key, study_id integer not null references studies on delete cascade,
    host text not null, machine text not null, pid integer not null, start_ticks bigint not null,
    seen timestamp with time zone not null)""",
    """create table if not exists zenithtune_claims (
    study_id integer not null references studies on delete cascade, run char(64) not null,
    claim varchar(32) not null, tuner varchar(32) not null, is_baseline boolean not null,
    is_over boolean not null default false, primary key (study_id, run))""",
)


@contextmanager
def one_at_a_time(engine: Engine) -> Iterator[None]:
    """Let tuners that start together make tables and studies one after the other."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    connection = engine.connect()
    try:
        connection.execute(text("select pg_advisory_xact_lock(:turn)"), {"turn": _TURN})
        yield
    finally:
        with suppress(SQLAlchemyError):  # a server that was struck down meanwhile has let go of it already
            connection.close()


def make_tables(engine: Engine) -> None:
    """Make the tables where they are missing; Optuna's own must be there."""
    from sqlalchemy import text

    with engine.begin() as connection:
        for table in _TABLES:
            connection.execute(text(table))
