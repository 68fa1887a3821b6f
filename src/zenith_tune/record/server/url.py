"""The address of a database server, as people write it, as SQLAlchemy takes it, and as it may be shown."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.shell.secrets import MASK, find_secrets, mask

if TYPE_CHECKING:
    from sqlalchemy import Engine


_SCHEMES = ("postgresql", "postgres")
_DRIVERS = ("psycopg", "psycopg2")
_PATIENCE = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""What libpq is asked for, so that a host that vanished is noticed."""


def is_server(url: str) -> bool:
    """Tell whether an address is that of a database server."""
    return _scheme(url)[0] in _SCHEMES


def database_path(url: str) -> Path | None:
    """Return the file behind an SQLite URL, whichever way it is written; None for a server."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///?([^?]*)(?:\?.*)?", url, re.DOTALL)
    return Path(match[1]) if match else None


def refuse_misspelt(text: str) -> None:
    """Refuse what was meant for a server's address, and would be taken for a file with a password in its name."""
    if re.match(r"postgres(?:ql)?(?:\+\w+)?:", text, re.IGNORECASE) and not is_server(text):
        raise UsageError("a server's --db must be postgresql://USER@HOST/DATABASE, but has no ://", hint="write it so")


def driver_url(url: str) -> str:
    """Return the address with its driver named, the one that is installed; refuses a server that has none."""
    scheme, driver = _scheme(url)
    if scheme not in _SCHEMES:
        return url
    if driver and driver not in _DRIVERS:
        problem = f"the driver of a PostgreSQL --db must be {' or '.join(_DRIVERS)}, but got {driver!r}"
        raise UsageError(problem, hint="leave it out")
    for name in [driver] if driver else _DRIVERS:
        if importlib.util.find_spec(name) is not None:
            return f"postgresql+{name}://{url.partition('://')[2]}"
    needed = driver or _DRIVERS[0]
    hint = "pip install psycopg2-binary" if needed == "psycopg2" else "pip install 'zenith-tune[postgres]'"
    raise StudyError(f"the database {shown(url)} needs {needed}, which is missing", hint=hint)


def connect_args(url: str) -> dict[str, int]:
    """Return what is asked of each connection, but for what the address itself says."""
    return {name: value for name, value in _PATIENCE.items() if f"{name}=" not in url}


def passwords(url: str) -> list[str]:
    """Return the password of an address, and the pieces that a driver may have taken for other parts of it."""
    match = re.search(r"://[^/?#:@]*:(.*)@", url)
    if match is None:
        return []
    return [match[1], *(piece for piece in re.split(r"[/@:#?]", match[1]) if len(piece) > 2 and piece != match[1])]


def shown(url: str) -> str:
    """Return an address without its password."""
    masked = mask(url, find_secrets(url))
    # Up to the last @: SQLAlchemy takes any other one, and a slash, for a part of the password.
    masked = re.sub(r"(://[^/?#:@]*:).*@", rf"\1{MASK}@", masked)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", rf"\1{MASK}", masked)


def _scheme(url: str) -> tuple[str, str]:
    scheme, divider, _ = url.partition("://")
    kind, _, driver = scheme.partition("+")
    return (kind.lower(), driver) if divider else ("", "")


_TURN = 0x7A656E697468  # the number of the lock under which tables and studies are made

_TABLES = (
    """create table if not exists zenithtune_tuners (
    tuner varchar(32) primary key, study_id integer not null,
    host text not null, machine text not null, pid integer not null, start_ticks bigint not null,
    seen timestamp with time zone not null)""",
    """create table if not exists zenithtune_claims (
    study_id integer not null, run char(64) not null,
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
        with suppress(SQLAlchemyError):  # a server that went down meanwhile has released it already
            connection.close()


def make_tables(engine: Engine) -> None:
    """Make our own tables where they are missing."""
    from sqlalchemy import text

    with engine.begin() as connection:
        for table in _TABLES:
            connection.execute(text(table))
