"""How many parameters the ranks of a layout hold, which is what the end of a step goes by."""

from __future__ import annotations

from zenith_tune.mimo.module_layout import LANGUAGE
from zenith_tune.mimo.stage_layers import stage_layers
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob


def rank_parameters(job: MimoJob, at: MimoCandidate) -> list[dict[str, tuple[float, int]]]:
    """Return the kinds of ranks that a layout has: by module, its parameters and its layers there."""
    kinds: dict[str, list[tuple[float, int]]] = {}
    for name, work, module in ((ENCODER, job.encoder, at.encoder), (LANGUAGE, job.language, at.language)):
        kinds[name] = [
            (
                sum(count * part.params(module.tp) for part, count in work.stage_parts(stage, module.pp)),
                len(stage_layers(work.num_layers, stage, module.pp)),
            )
            for stage in range(module.pp)
        ]
    if at.is_colocated:
        return [{name: stages[0] for name, stages in kinds.items()}]
    return [{name: stage} for name, stages in kinds.items() for stage in stages]
