"""The hosts that trials are given, each to one trial at a time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from zenith_tune.study.resources import Resources


class HostPool:
    """Give out whole hosts, in the order of the hostfile; one that failed only where there are too few others.

    >>> pool = HostPool({"n1": 8, "n2": 8, "n3": 4})
    >>> pool.take(Resources(nodes=2, gpus_per_node=8)), pool.take(Resources(gpus_per_node=8)), pool.take(Resources())
    (['n1', 'n2'], None, ['n3'])
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.slots = dict(slots)
        self._free = set(slots)
        self._failed: set[str] = set()
        self._changed = threading.Condition()

    def fitting(self, resources: Resources) -> list[str]:
        """Return the hosts that a trial with such needs may ever be given."""
        gpus = resources.gpus_per_node or 1
        return [name for name, slots in self.slots.items() if slots >= gpus and name not in resources.avoid]

    def take(self, resources: Resources) -> list[str] | None:
        """Return hosts that are the caller's until they are given back; None where they are not free yet."""
        with self._changed:
            fitting = self.fitting(resources)
            sound = [name for name in fitting if name not in self._failed]
            usable = sound if len(sound) >= resources.nodes else fitting
            taken = [name for name in usable if name in self._free][: resources.nodes]
            if len(taken) < resources.nodes:
                return None
            self._free -= set(taken)
            return taken

    def give_back(self, hosts: Sequence[str], failed: Sequence[str] = ()) -> None:
        """Take hosts back, and remember which of them failed; one that did not is sound again."""
        with self._changed:
            self._free |= set(hosts)
            self._failed = (self._failed - set(hosts)) | set(failed)
            self._changed.notify_all()

    def distrust(self, hosts: Collection[str]) -> None:
        """Remember hosts that failed before anybody took them."""
        with self._changed:
            self._failed |= set(hosts)

    def wait(self, timeout_s: float) -> None:
        """Sleep until hosts were given back, at most so long."""
        with self._changed:
            self._changed.wait(timeout_s)
