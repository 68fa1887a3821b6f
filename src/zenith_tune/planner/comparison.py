"""One job on several clusters: which is fastest, and which is cheapest."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.planner.cost import TrainingCost
from zenith_tune.planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterComparison:
    """The plans of one job on several clusters, and what so many tokens take on each."""

    plans: tuple[Plan, ...]
    costs: tuple[TrainingCost | None, ...]
    """One for each plan; None where nothing fits."""

    @property
    def fastest(self) -> Plan | None:
        """The plan of the most tokens per second; None where none has a layout that fits."""
        fitting = [plan for plan in self.plans if plan.best]
        return max(fitting, key=lambda plan: plan.best[0].tokens_per_s, default=None)

    @property
    def cheapest(self) -> Plan | None:
        """The plan whose tokens cost least, of those with a known price."""
        pairs = zip(self.plans, self.costs, strict=True)
        priced = [(cost.dollars, plan) for plan, cost in pairs if cost is not None and cost.dollars is not None]
        return min(priced, key=lambda pair: pair[0])[1] if priced else None

    @property
    def unpriced(self) -> list[str]:
        """GPUs that have no known price."""
        pairs = zip(self.plans, self.costs, strict=True)
        return list(dict.fromkeys(plan.cluster.gpu.name for plan, cost in pairs if cost and cost.price is None))
