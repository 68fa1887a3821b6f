"""What each trial asks of Slurm."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.runners.slurm_text import duration_s, hosts
from zenith_tune.study.resources import Resources

_OWN = frozenset(
    {"--array", "--chdir", "--clusters", "--error", "--export", "--input", "--job-name", "--open-mode", "--output"}
    | {"--parsable", "--requeue", "--test-only", "--wait", "--wrap", "-a", "-D", "-e", "-i", "-J", "-M", "-o", "-W"}
)
"""Options that would take the trial away from the tuner, which gives them itself or must do without."""

_HELD = frozenset({"--hold"})
_HELD_SHORT = re.compile(r"-[hkOQsvV]*H")
"""-H, also behind others that take no value."""
_MIN_BEGINNING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """Hold the words of --slurm, and turn them into options of sbatch."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nodes: int | None = None
    """None: what the trial needs by itself; so too the GPUs."""
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    time: str | None = None
    extra: str = ""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "cpus_per_task"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UsageError(f"slurm: {name} must be at least 1, but got {number}: give {name}=1 or leave it out")
        if self.time is not None and duration_s(self.time) is None and self.time.upper() != "UNLIMITED":
            law = f"slurm: time must be minutes, H:M:S or D-H:M:S, but got {self.time!r}"
            raise UsageError(f"{law}: write e.g. time=00:20:00")
        for word in self.extra_words():
            name = word.partition("=")[0]
            if _is_one_of(_HELD, name) or _HELD_SHORT.match(word):
                raise UsageError(f"slurm: extra must not hold {name!r}, with which no trial would start: take it out")
            if _is_one_of(_OWN, name) or (word[:2] in _OWN and not word.startswith("--")):
                raise UsageError(f"slurm: extra must not hold {name!r}, which the tuner gives itself: take it out")

    def extra_words(self) -> list[str]:
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
        return [*named, "--ntasks-per-node=1", "--no-requeue", "--export=ALL", *self.extra_words()]


def _is_one_of(options: frozenset[str], name: str) -> bool:
    """Tell whether sbatch would take the name for one of these: it also takes the beginning of a long one."""
    is_long = name.startswith("--") and len(name) > _MIN_BEGINNING
    return name in options or (is_long and any(option.startswith(name) for option in options))
