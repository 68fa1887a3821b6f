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
        return self._cheapest[1] if self._cheapest else None

    @property
    def cheapest_below(self) -> dict[str, float]:
        """Clusters without a known price, and the price of a GPU-hour below which each would be the cheapest."""
        if self._cheapest is None:
            return {}
        pairs = [(plan, cost) for plan, cost in zip(self.plans, self.costs, strict=True) if cost is not None]
        return {plan.cluster.name: self._cheapest[0] / cost.gpu_hours for plan, cost in pairs if cost.price is None}

    @property
    def _cheapest(self) -> tuple[float, Plan] | None:
        pairs = zip(self.plans, self.costs, strict=True)
        priced = [(cost.dollars, plan) for plan, cost in pairs if cost is not None and cost.dollars is not None]
        return min(priced, key=lambda pair: pair[0], default=None)
