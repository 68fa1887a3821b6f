"""A PostgreSQL server of the tests' own: a fresh cluster on a free port, which can be struck down and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.requirements import skip

USER, PASSWORD, DATABASE = "tuner", "s3cret-of-the-tests", "studies"
ACCOUNT = "postgres"
"""The server refuses to run as root; Debian's package brings this account along."""


class PostgresqlServer:
    """Run a server from `start` to `close`; everything that it writes is gone afterwards."""

    def __init__(self, programs: Path, *, is_durable: bool = False) -> None:
        self._programs = programs
        # Not in the test's own folder: that is closed to the server's account, and too long a path for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="zt-pg-"))
        self._data = self.folder / "data"
        self._as_account: list[str] = []
        self._is_durable = is_durable
        self.port = _free_port()
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._as_account = [
                *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"),
            ]

    @property
    def url(self) -> str:
        """Where the database is, with its password."""
        return self.url_of(PASSWORD)

    def url_of(self, password: str = PASSWORD, database: str = DATABASE) -> str:
        """Return the address of a database under a password, right or wrong."""
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Make the cluster with its one database, and start it."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self._as_account:
            shutil.chown(secret, ACCOUNT)
        quick = [] if self._is_durable else ["--no-sync"]
        self._run("initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", *quick)
        settings = [
            f"port = {self.port}",
            "listen_addresses = '127.0.0.1'",
            f"unix_socket_directories = '{self.folder}'",
        ]
        settings += [] if self._is_durable else ["fsync = off"]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *settings, ""]))
        self.launch()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE)

    def launch(self) -> None:
        """Start the server on the cluster that is there."""
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self.folder / "log")

    def strike_down(self) -> None:
        """Stop the server as a power cut would: no transaction is finished, no connection is closed in order."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-w", "-D", self._data)

    def close(self) -> None:
        """Stop the server and remove all that it wrote."""
        if (self._data / "postmaster.pid").exists():
            self.strike_down()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [*self._as_account, str(self._programs / program), *map(str, arguments)]
        environment = {"PATH": os.environ["PATH"], "PGPASSWORD": PASSWORD, "LC_ALL": "C.UTF-8"}
        # The server that pg_ctl leaves behind would hold a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=500
            )
            output.seek(0)
            assert done.returncode == 0, f"{command} failed: {output.read().decode()}"


def postgresql_programs() -> Path:
    """Return the folder of PostgreSQL's programs, Debian's newest or those on PATH; skips the test without them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    program = found[-1] if found else shutil.which("initdb")
    if program is None:
        skip("postgresql", "PostgreSQL is not installed")
    return Path(str(program)).parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
