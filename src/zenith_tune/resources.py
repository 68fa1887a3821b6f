"""What a trial needs of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Say what a trial needs.

    >>> Resources(nodes=2, gpus_per_node=8).describe()
    '2 nodes of 8 GPUs'
    """

    nodes: int = 1
    gpus_per_node: int | None = None
    """None: whatever the command finds by itself."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed under this trial before."""

    def describe(self) -> str:
        """Return it in words."""
        gpus = "" if self.gpus_per_node is None else f"{self.gpus_per_node} GPU{'s' * (self.gpus_per_node != 1)}"
        if self.nodes == 1:
            return gpus or "1 node"
        return f"{self.nodes} nodes" + (f" of {gpus}" if gpus else "")
