"""What releases of Megatron-LM brought, by its tags from 0.7 to 0.19 and main (0.20)."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.describe.megatron.version import NEWEST, OLDEST, MegatronVersion, Release

EXPERTS_WITH_CONTEXT: Release = (0, 8)
FOLDED_EXPERTS: Release = (0, 10)
"""Experts over the same ranks as the dense layers, with --expert-tensor-parallel-size; before, they divide dp."""
VIRTUAL_STAGES: Release = (0, 11)
"""--num-virtual-stages-per-pipeline-rank."""
ACCOUNTED: Release = (0, 11)
ACCOUNTED_EXPERTS: Release = (0, 12)
"""--account-for-*-in-pipeline-split, which 0.11 refuses for experts whose load is balanced by a loss."""
MODULES: Release = (0, 12)
"""--recompute-modules."""
LAID_OUT: Release = (0, 13)
"""--pipeline-model-parallel-layout."""
BALANCED_ROUTING: Release = (0, 13)
"""--moe-router-force-load-balancing."""
EXPERT_OVERLAP: Release = (0, 14)
"""--overlap-moe-expert-parallel-comm."""
SHARED_EXPERTS: Release = (0, 14)
"""shared_experts among the modules."""
SPREAD_GROUPS: Release = (0, 16)
"""Fewer query groups than tp."""


@dataclass(frozen=True, slots=True)
class VersionFeatures:
    """The features of a version; one that is not known, or newer than any that is, counts as the newest."""

    version: MegatronVersion | None

    @property
    def release(self) -> Release:
        """The release whose rules are taken."""
        return NEWEST if self.version is None else min(self.version.release, NEWEST)

    def has(self, first: Release) -> bool:
        """Return whether the version has what is there from the release `first` on."""
        return self.release >= first

    def lack(self, what: str, first: Release) -> str:
        """Say that `what` is there from the release `first` on, and which one is used."""
        assert self.version is not None  # or else it counts as the newest, which lacks nothing
        return f"{what} needs Megatron {first[0]}.{first[1]}, but your tree is {self.version.name}"


def version_note(version: MegatronVersion | None) -> str:
    """Return which Megatron was found, and whose rules are taken."""
    newest, oldest = (f"{major}.{minor}" for major, minor in (NEWEST, OLDEST))
    if version is None:
        return f"no Megatron tree found next to the script, on PYTHONPATH or installed: the rules are those of {newest}"
    found = f"Megatron {version.name} (its tree at {version.folder})"
    if version.release > NEWEST:
        return f"warning: {found} is newer than {newest}, the newest whose rules are known: they are taken"
    if version.release < OLDEST:
        return f"warning: {found} is older than {oldest}, the oldest whose rules are known: it may refuse trials"
    return found
