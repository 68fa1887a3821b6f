"""A private Slurm cluster on this host: one controller, several nodes with fake GPUs, all on free loopback ports."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.requirements import skip
from tests.started_processes import is_alive

GPUS_PER_NODE = 8
CPUS_PER_NODE = 16
_START_S = 60.0
_NULL_DEVICE = os.makedev(1, 3)


def need_slurm() -> None:
    """Skip where no cluster can be started."""
    for program in ("slurmctld", "slurmd", "munged", "sbatch"):
        if shutil.which(program, path=_path()) is None:
            skip("slurm", f"{program} is not installed")
    if os.geteuid() != 0:
        skip("slurm", "starting Slurm's daemons needs root")


class SlurmCluster:
    """The daemons of one cluster; each is known by its pid file and ended by that pid."""

    def __init__(self, folder: Path, num_nodes: int = 4, gpus_per_node: int = GPUS_PER_NODE) -> None:
        self._folder = folder
        self.nodes = [f"n{index}" for index in range(1, num_nodes + 1)]
        self._gpus_per_node = gpus_per_node
        self._ports = _free_ports(num_nodes + 1)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}

    def start(self) -> None:
        """Start munge, the controller and every node, and wait until all nodes are idle."""
        for name in ("state", "spool", "log", "run", "munge", *(f"spool/{node}" for node in self.nodes)):
            (self._folder / name).mkdir(parents=True, mode=0o755)
        (self._folder / "slurm.conf").write_text(self._slurm_conf())
        (self._folder / "gres.conf").write_text(self._gres_conf())
        self._start_munge()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_until_idle()

    def stop(self) -> None:
        """End every job, then every daemon, then what a killed node left running."""
        self._end_jobs()
        for pid_file in sorted((self._folder / "run").glob("*.pid")):
            _end(pid_file)
        for process in Path("/proc").glob("[0-9]*"):
            if _has_variable(process, f"SLURM_CONF={self.environment['SLURM_CONF']}"):
                _kill(int(process.name), signal.SIGKILL)

    def start_controller(self) -> None:
        """Start slurmctld; it goes on with the jobs that it knew before."""
        self.run("slurmctld", "-f", self.environment["SLURM_CONF"])

    def stop_controller(self) -> None:
        """Stop slurmctld, which writes down what it knows; nodes and jobs go on."""
        _end(self._folder / "run" / "slurmctld.pid")

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self.run("slurmd", "-N", node, "-f", self.environment["SLURM_CONF"])

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd; as on a node that lost its network, the jobs' processes go on."""
        _end(self._folder / "run" / f"slurmd-{node}.pid", signal.SIGKILL)

    def run(self, *argv: str) -> str:
        """Run one of Slurm's programs against this cluster and return what it prints."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=500)
        if done.returncode:
            raise AssertionError(f"{' '.join(argv)} failed: {done.stderr}")
        return done.stdout

    def jobs(self) -> list[list[str]]:
        """Return id, state and name of every job that the controller remembers."""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%i|%T|%j").splitlines()
        return [line.split("|", 2) for line in lines]

    def wait_for_controller(self) -> None:
        """Wait until slurmctld answers."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.run("scontrol", "ping")
                return
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def wait_until_idle(self) -> None:
        """Wait until every node is there and nothing runs on it."""
        deadline = time.monotonic() + _START_S
        shown = ""
        while time.monotonic() < deadline:
            try:
                shown = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
            except AssertionError as error:  # the controller may not listen yet
                shown = str(error)
            if shown.split("\n")[:-1] == [f"{node} idle" for node in self.nodes]:
                return
            time.sleep(0.1)
        raise AssertionError(f"the cluster is not idle after {_START_S:g} s: {shown}")

    def _end_jobs(self) -> None:
        # A test may have left the controller dead: the daemons are ended all the same.
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--signal=KILL", "--full", "--user=root")
            deadline = time.monotonic() + 500
            while self.run("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.1)

    def _start_munge(self) -> None:
        folder = self._folder / "munge"
        folder.chmod(0o700)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = {"key": key, "log": folder / "munged.log", "seed": folder / "munged.seed"}
        files["pid"] = self._folder / "run" / "munged.pid"
        options = [f"--{name}-file={path}" for name, path in files.items()]
        self.run("munged", "--force", "--num-threads=2", f"--socket={self._munge_socket}", *options)

    @property
    def _munge_socket(self) -> Path:
        return self._folder / "run" / "munge.socket"

    def _slurm_conf(self) -> str:
        folder, host = self._folder, socket.gethostname().partition(".")[0]
        settings = {
            "ClusterName": "test",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._munge_socket}",
            "CredType": "cred/munge",
            "SlurmctldPort": str(self._ports[0]),
            "StateSaveLocation": f"{folder}/state",
            "SlurmdSpoolDir": f"{folder}/spool/%n",
            "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
            "SlurmdPidFile": f"{folder}/run/slurmd-%n.pid",
            "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{folder}/log/slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "ReturnToService": "2",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_min_interval=100000,bf_interval=2,batch_sched_delay=0",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            # Short, so that a killed node is noticed while a test waits.
            "SlurmdTimeout": "8",
            "KillWait": "2",
            "MinJobAge": "300",
            "OverTimeLimit": "0",
            "InactiveLimit": "0",
            "Waittime": "0",
            "GresTypes": "gpu",
            "JobAcctGatherType": "jobacct_gather/none",
            "SlurmdParameters": "config_overrides",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        shape = f"CPUs={CPUS_PER_NODE} RealMemory=64000 Gres=gpu:{self._gpus_per_node} Feature=fake State=UNKNOWN"
        for node, port in zip(self.nodes, self._ports[1:], strict=True):
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {shape}")
        every, few = ",".join(self.nodes), self.nodes[0]
        lines.append(f"PartitionName=main Nodes={every} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO")
        lines.append(f"PartitionName=short Nodes={few} MaxTime=00:01:00 MaxNodes=1 State=UP OverSubscribe=NO")
        return "\n".join(lines) + "\n"

    def _gres_conf(self) -> str:
        # A GPU that is only counted leaves its node invalid: each needs a device file.
        devices = self._folder / "run" / "gpu"
        for index in range(self._gpus_per_node):
            os.mknod(f"{devices}{index}", stat.S_IFCHR | 0o666, _NULL_DEVICE)
        files = f"{devices}[0-{self._gpus_per_node - 1}]"
        return "".join(f"NodeName={node} Name=gpu File={files}\n" for node in self.nodes)


@contextmanager
def slurm_cluster(folder: Path, num_nodes: int = 4, gpus_per_node: int = GPUS_PER_NODE) -> Iterator[SlurmCluster]:
    """Run a cluster for as long as the block runs."""
    cluster = SlurmCluster(folder, num_nodes, gpus_per_node)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def _path() -> str:
    """Return a search path with the folders of the daemons, which a plain user's may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _end(pid_file: Path, signum: signal.Signals = signal.SIGTERM) -> None:
    """End the process that a daemon's pid file names, and wait until it is gone."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    _kill(pid, signum)
    deadline = time.monotonic() + 500
    while is_alive(pid):
        if time.monotonic() > deadline:
            _kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    pid_file.unlink(missing_ok=True)


def _kill(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _has_variable(process: Path, variable: str) -> bool:
    try:
        return variable.encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
