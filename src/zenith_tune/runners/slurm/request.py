"""What each trial asks of Slurm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.runners.base import check_seconds
from zenith_tune.runners.launch.gang import most_gangs
from zenith_tune.runners.slurm.client import duration_s, hosts, megabytes
from zenith_tune.study.resources import Resources

LAUNCHES = ("auto", "once", "each-node")
_OWN = frozenset(
    {"--array", "--chdir", "--clusters", "--error", "--export", "--input", "--job-name", "--open-mode", "--output"}
    | {"--parsable", "--requeue", "--test-only", "--wait", "--wrap", "-a", "-D", "-e", "-i", "-J", "-M", "-o", "-W"}
)
"""Options that would take the trial away from the tuner, which gives them itself or must do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """The settings of --slurm, which become options of sbatch."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nodes: int | None = None
    """Nodes per trial; None, here and for the GPUs: what the trial needs by itself."""
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    time: str | None = None
    extra: str = ""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "cpus_per_task"):
            number = getattr(self, name)
            if number is not None and number < 1:
                problem = f"slurm: {name} must be at least 1, but got {number}"
                raise UsageError(problem, hint=f"give {name}=1 or leave it out")
        if self.time is not None and duration_s(self.time) is None and self.time.upper() != "UNLIMITED":
            problem = f"slurm: time must be minutes, H:M:S or D-H:M:S, but got {self.time!r}"
            raise UsageError(problem, hint="write e.g. time=00:20:00")
        for option in self.extra_options():
            name = option.partition("=")[0]
            problem = f"slurm: extra must not hold {name!r}"
            if name in ("--hold", "-H"):
                raise UsageError(f"{problem}, with which no trial would start", hint="take it out")
            if name in _OWN or (option[:2] in _OWN and not option.startswith("--")):
                raise UsageError(f"{problem}, which the tuner gives itself", hint="take it out")

    def extra_options(self) -> list[str]:
        """Return the raw options, split as a shell would."""
        try:
            return shlex.split(self.extra)
        except ValueError as error:
            raise UsageError(f"slurm: extra is no list of options ({error}): {self.extra!r}") from error

    def needs(self, resources: Resources) -> Resources:
        """Return what a trial gets: as the user gave it to Slurm, and as many GPUs in all as the command needs."""
        return resources.given(nodes=self.nodes, gpus_per_node=self.gpus_per_node)

    def options(self, resources: Resources) -> list[str]:
        """Return sbatch's options for one trial, apart from its name and its files."""
        needs = self.needs(resources)
        excluded = [*(hosts(self.exclude) if self.exclude else []), *needs.avoid]
        given = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "exclude": ",".join(dict.fromkeys(excluded)),
            "nodes": needs.nodes,
            "gpus-per-node": needs.gpus_per_node,
            "cpus-per-task": self.cpus_per_task,
            "mem": self.mem,
            "time": self.time,
        }
        named = [f"--{name}={value}" for name, value in given.items() if value]
        # Requeued, a job would run again without the tuner's knowing, over what its first run wrote.
        return [*named, "--ntasks-per-node=1", "--no-requeue", "--export=ALL", *self.extra_options()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmArguments(SlurmRequest):
    """What runner slurm takes."""

    setup: str = ""
    launch: str = "auto"
    steps: bool | None = None
    ahead: int | None = None
    """Number of jobs that wait in the queue, so that Slurm has the next one at hand."""
    grace_s: float = 5.0
    call_timeout_s: float = 10.0
    max_pause_s: float = 10.0

    def __post_init__(self) -> None:
        SlurmRequest.__post_init__(self)  # slots leave `super()` without its class
        check_seconds("slurm", "grace_s", self.grace_s)
        check_seconds("slurm", "call_timeout_s", self.call_timeout_s, least_s=0.1)
        check_seconds("slurm", "max_pause_s", self.max_pause_s, least_s=0.1)
        if self.ahead is not None and self.ahead < 0:
            problem = f"slurm: ahead must be 0 or more jobs, but got {self.ahead}"
            raise UsageError(problem, hint="give ahead=0 or leave it out")
        if self.launch not in LAUNCHES:
            raise UnknownNameError("Slurm launch", self.launch, LAUNCHES)


MAX_SLOTS = 64
_GPUS = re.compile(r"gpu(?::[^:,()\s]+)?:([0-9]+)")
_OUT = re.compile(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|\*|UNKNOWN|MAINT|POWERED_DOWN|POWERING_DOWN|FUTURE|INVAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """The resources of a node."""

    num_cpus: int
    num_gpus: int
    memory_mb: int
    name: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    is_in: bool = True
    """Whether it is neither down nor drained."""

    @classmethod
    def read(cls, shown: dict[str, str]) -> NodeRoom:
        """Read one line of `scontrol show node`."""
        return cls(
            name=shown.get("NodeName", ""),
            num_cpus=int(shown.get("CPUEfctv") or shown.get("CPUTot") or 1),
            num_gpus=sum(map(int, _GPUS.findall(shown.get("Gres", "")))),
            memory_mb=int(shown.get("RealMemory") or 0),
            features=tuple(shown.get("AvailableFeatures", "").split(",")),
            partitions=tuple(shown.get("Partitions", "").split(",")),
            is_in=not _OUT.search(shown.get("State", "")),
        )

    def holds(self, request: SlurmRequest, gpus_per_node: int | None) -> int:
        """Return how many trials' parts fit on this node."""
        fits = [self.num_cpus // (request.cpus_per_task or 1)]
        if gpus_per_node:
            fits.append(self.num_gpus // gpus_per_node)
        if self.memory_mb and (wanted_mb := megabytes(request.mem or "")):
            fits.append(self.memory_mb // wanted_mb)
        return min(fits)


def check_request(
    request: SlurmRequest, needs: Resources, partitions: Sequence[dict[str, str]], nodes: Sequence[NodeRoom]
) -> list[NodeRoom]:
    """Return the nodes that such trials may run on; raises UsageError where none can ever start."""
    chosen = _chosen(request, partitions)
    names = {each["PartitionName"] for each in chosen}
    where = f"partition {','.join(sorted(names))}"
    excluded = set(hosts(request.exclude)) if request.exclude else set()
    usable = [node for node in nodes if names & set(node.partitions) and node.name not in excluded]
    if request.constraint and re.fullmatch(r"[\w.-]+", request.constraint):
        usable = _with_feature(request.constraint, usable, where)
    fitting = [node for node in usable if node.holds(request, needs.gpus_per_node)]
    if usable and not fitting:
        most = max(usable, key=lambda node: (node.num_gpus, node.num_cpus, node.memory_mb))
        has = f"{most.num_gpus} GPUs, {most.num_cpus} CPUs and {most.memory_mb} MB"
        problem = f"slurm: a trial needs {_wants(request, needs)} of a node, but those of {where} have {has}"
        raise UsageError(problem, hint="give less of it, more nodes=, or another partition=")
    if len(fitting) < needs.nodes:
        also = " that match the request" if len(fitting) < len([n for n in nodes if names & set(n.partitions)]) else ""
        problem = f"slurm: a trial needs {needs.nodes} nodes, but {where} has {len(fitting)}{also}"
        hint = "give fewer nodes=, or another partition=" if fitting else "exclude= fewer of them, or give partition="
        raise UsageError(problem, hint=hint)
    _check_limits(request, needs, chosen, where)
    return fitting


def _with_feature(feature: str, nodes: list[NodeRoom], where: str) -> list[NodeRoom]:
    having = [node for node in nodes if feature in node.features]
    if nodes and not having:
        known = sorted({each for node in nodes for each in node.features if each and each != "(null)"})
        problem = f"slurm: constraint={feature} must name a feature of some node, but those of {where} have"
        raise UsageError(f"{problem} {', '.join(known) or 'none'}", hint="give one of these, or leave it out")
    return having


def _chosen(request: SlurmRequest, partitions: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    known = {each["PartitionName"]: each for each in partitions if "PartitionName" in each}
    if request.partition is None:
        default = [each for each in known.values() if each.get("Default") == "YES"]
        if not default:
            names = ", ".join(sorted(known)) or "none"
            raise UsageError("slurm has no default partition", hint=f"give partition=NAME. Known: {names}.")
        return default
    for name in request.partition.split(","):
        if name not in known:
            raise UnknownNameError("Slurm partition", name, known)
    return [known[name] for name in request.partition.split(",")]


def _wants(request: SlurmRequest, needs: Resources) -> str:
    parts = [
        f"{needs.gpus_per_node} GPUs" if needs.gpus_per_node else "",
        f"{request.cpus_per_task} CPUs" if request.cpus_per_task else "",
        f"{request.mem} memory" if request.mem else "",
    ]
    return " and ".join(part for part in parts if part) or "1 CPU"


def _check_limits(request: SlurmRequest, needs: Resources, chosen: Sequence[dict[str, str]], where: str) -> None:
    """Hold the request to the partitions' own limits; one partition that takes it is enough."""
    sizes = [int(most) for each in chosen if (most := each.get("MaxNodes", "")).isdecimal()]
    if len(sizes) == len(chosen) and needs.nodes > max(sizes):
        problem = f"slurm: a trial needs {needs.nodes} nodes, but {where} gives a job at most {max(sizes)}"
        raise UsageError(problem, hint="give fewer nodes=, or another partition=")
    longest = [limit_s for each in chosen if (limit_s := duration_s(each.get("MaxTime", ""))) is not None]
    wanted_s = duration_s(request.time or "")
    if wanted_s is not None and len(longest) == len(chosen) and wanted_s > max(longest):
        most = max(chosen, key=lambda each: duration_s(each.get("MaxTime", "")) or 0.0)["MaxTime"]
        raise UsageError(f"slurm: time={request.time} is above the limit of {where}, which is {most}", hint="give less")


def gives_whole_nodes(request: SlurmRequest, partitions: Sequence[dict[str, str]]) -> bool:
    """Tell whether no two jobs share a node."""
    shared = {each.get("OverSubscribe") for each in _chosen(request, partitions)}
    return shared == {"EXCLUSIVE"} or "--exclusive" in request.extra_options()


def num_slots(request: SlurmRequest, needs: Resources, nodes: Sequence[NodeRoom], is_exclusive: bool = False) -> int:
    """Return how many trials the nodes that are in hold at once, at least 1 and at most 64.

    >>> room = [NodeRoom(name=n, num_cpus=16, num_gpus=8, memory_mb=1) for n in "abc"]
    >>> num_slots(SlurmRequest(), Resources(gpus_per_node=4), room)
    6
    >>> num_slots(SlurmRequest(), Resources(gpus_per_node=4, nodes=2), room)
    3
    """
    fits = [node.holds(request, needs.gpus_per_node) for node in nodes if node.is_in]
    fits = [min(fit, 1) for fit in fits] if is_exclusive else fits
    return max(min(most_gangs(fits, needs.nodes), MAX_SLOTS), 1)
