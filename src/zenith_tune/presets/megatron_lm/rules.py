"""The rules of Megatron-LM that changed from release to release; all are of its tags from 0.7 to 0.19 and main (0.20).

Legend: as in `constraints`, and vp model chunks per pipeline rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zenith_tune.describe.megatron.version import NEWEST, OLDEST, MegatronVersion, Release
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.constraints import check_query_groups
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import is_accounted, is_laid_out

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
EXPERT_OVERLAP: Release = (0, 14)
"""--overlap-moe-expert-parallel-comm."""
SHARED_EXPERTS: Release = (0, 14)
"""shared_experts among the modules."""
SPREAD_GROUPS: Release = (0, 16)
"""Fewer query groups than tp."""


@dataclass(frozen=True, slots=True)
class VersionRules:
    """Know what a version has and refuses; one that is not known, or newer than any that is, counts as the newest.

    >>> VersionRules(None).release
    (0, 20)
    """

    version: MegatronVersion | None

    @property
    def release(self) -> Release:
        """Return the release whose rules are taken."""
        return NEWEST if self.version is None else min(self.version.release, NEWEST)

    def has(self, first: Release) -> bool:
        """Tell whether the version has what is there from the release `first` on."""
        return self.release >= first

    def lack(self, what: str, first: Release) -> str | None:
        """Return why what is there from the release `first` on does not go."""
        if self.version is None or self.has(first):
            return None
        return f"{what} needs Megatron {first[0]}.{first[1]}, but your tree is {self.version.name}"

    def reason(self, rule: str, model: ModelSpec, at: Layout) -> str | None:
        """Return what a version asks beyond the planner's rule of that name, which the newest one has."""
        if rule == "query_groups" and not self.has(SPREAD_GROUPS) and check_query_groups(model.num_kv_heads, tp=at.tp):
            return self.lack(f"tp {at.tp} above {model.num_kv_heads} query groups", SPREAD_GROUPS)
        if rule != "pipeline":
            return None
        if is_laid_out(model.num_layers, pp=at.pp, vp=at.vp):
            return self.lack(f"{model.num_layers} layers laid out over pp*vp = {at.pp}*{at.vp}", LAID_OUT)
        if is_accounted(model.num_layers, pp=at.pp, vp=at.vp):
            what = f"{model.num_layers} layers over pp*vp = {at.pp}*{at.vp} with embedding and loss counted"
            return self.lack(what, ACCOUNTED_EXPERTS if model.num_experts else ACCOUNTED)
        return None

    def expert_reasons(self, at: Layout) -> Iterator[str]:
        """Yield what a version that does not fold experts over the dense ranks asks of their sizes."""
        if self.has(FOLDED_EXPERTS):
            return
        reasons = (
            self.lack(f"etp {at.etp} other than tp {at.tp}", FOLDED_EXPERTS) if at.etp != at.tp else None,
            self.lack(f"ep {at.ep} that does not divide dp {at.dp}", FOLDED_EXPERTS) if at.dp % at.ep else None,
            self.lack("ep and cp above 1 together", EXPERTS_WITH_CONTEXT) if min(at.ep, at.cp) > 1 else None,
        )
        yield from (reason for reason in reasons if reason)


def version_note(version: MegatronVersion | None) -> str:
    """Return which Megatron was found, and whose rules are taken."""
    newest, oldest = (f"{major}.{minor}" for major, minor in (NEWEST, OLDEST))
    if version is None:
        return f"no Megatron tree found beside the script, on PYTHONPATH or installed: the rules are those of {newest}"
    found = f"Megatron {version.name} (its tree at {version.folder})"
    if version.release > NEWEST:
        return f"warning: {found} is newer than {newest}, the newest whose rules are known: they are taken"
    if version.release < OLDEST:
        return f"warning: {found} is older than {oldest}, the oldest whose rules are known: it may refuse trials"
    return found
