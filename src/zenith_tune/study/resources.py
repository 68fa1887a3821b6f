"""The needs of a trial on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zenith_tune.errors import UsageError
from zenith_tune.study.parameters import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """How a process that has measured one point can measure another, without a start of its own."""

    values: Mapping[str, Value]
    """What it changes, by the names that its hook knows."""
    shares: str
    """What must be the same."""
    is_proven: bool
    """Whether a start of its own has shown that such values reach the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The needs of a trial."""

    nodes: int = 1
    gpus_per_node: int | None = None
    """None: whatever the command finds by itself."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed under this trial before."""

    def for_gpus(self, num_gpus: int | None) -> Resources:
        """Return the same with so many GPUs in all, where the command itself does not say."""
        if num_gpus is None or self.gpus_per_node is not None or num_gpus % self.nodes:
            return self
        return replace(self, gpus_per_node=num_gpus // self.nodes)

    def given(self, *, nodes: int | None = None, gpus_per_node: int | None = None) -> Resources:
        """Return what the user gives in place of what the command asks for; refuses other GPUs than it needs."""
        needed = None if self.gpus_per_node is None else self.nodes * self.gpus_per_node
        num_nodes = nodes or self.nodes
        if needed is None:
            return replace(self, nodes=num_nodes, gpus_per_node=gpus_per_node)
        per_node = gpus_per_node or needed // num_nodes
        if num_nodes * per_node != needed:
            problem = f"a trial must have the {needed} GPUs that its command or preset is for"
            got = replace(self, nodes=num_nodes, gpus_per_node=per_node).describe()
            raise UsageError(
                f"{problem}, but got {got}", hint="change n_gpus or the command, or the GPUs and nodes of a trial"
            )
        return replace(self, nodes=num_nodes, gpus_per_node=per_node)

    def describe(self) -> str:
        """Return it in words."""
        gpus = "" if self.gpus_per_node is None else f"{self.gpus_per_node} GPU{'s' * (self.gpus_per_node != 1)}"
        if self.nodes == 1:
            return gpus or "1 node"
        return f"{self.nodes} nodes" + (f" of {gpus}" if gpus else "")
