"""Several hosts behind ssh: addresses of this machine, with a server, keys and a configuration of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.requirements import skip

_START_S = 120.0
_SERVER = """
{listen}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
"""
_CLIENT = """
Host *
    Port {port}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking accept-new
    LogLevel ERROR
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHosts:
    names: tuple[str, ...]
    ssh: Path
    """The program that knows the keys."""

    def hostfile(self, path: Path, num: int | None = None, slots: int = 2) -> str:
        path.write_text("".join(f"{name} slots={slots}\n" for name in self.names[:num]))
        return str(path)


@contextlib.contextmanager
def ssh_hosts(folder: Path, num: int) -> Iterator[SshHosts]:
    """Start the server, and stop it whatever happens."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if server is None or shutil.which("ssh") is None:
        skip("engines", "openssh is not installed")
    assert server is not None
    names = tuple(f"127.0.0.{number}" for number in range(2, 2 + num))
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    port = _free_port(names[0])
    listen = "\n".join(f"ListenAddress {name}:{port}" for name in names)
    (folder / "sshd_config").write_text(_SERVER.format(listen=listen, folder=folder))
    (folder / "ssh_config").write_text(_CLIENT.format(port=port, folder=folder))
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    program.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where the server shuts itself in before it knows a user
    process = subprocess.Popen([server, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        _wait_for(names[0], port, process)
        yield SshHosts(names=names, ssh=program)
    finally:
        process.terminate()
        process.wait()


def _free_port(name: str) -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind((name, 0))
        return int(probe.getsockname()[1])


def _wait_for(name: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((name, port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"sshd did not answer, exit code {process.poll()}")
