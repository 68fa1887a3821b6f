"""Measured rates in one line, for people."""

from __future__ import annotations

from zenith_tune.mimo.module_layout import ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planning.mimo_rates import MimoRates, ModuleRates


def rates_told(job: MimoJob, rates: MimoRates, num_runs: int) -> str:
    """Return what a rank takes for one item and one sample, whole and split in two, for messages and at the end."""
    whole = _both(job, rates, 1)
    runs = "1 run" if num_runs == 1 else f"{num_runs} runs"
    params = sum(
        part.params(1) * count for work in (job.encoder, job.language) for part, count in work.stage_parts(0, 1)
    )
    end_s = rates.agree_s + rates.update_s(params, job.encoder.num_layers + job.language.num_layers)
    return (
        f"measured in {runs}: a rank takes {whole} forward and backward, with tp 2 {_both(job, rates, 2)}; a message "
        f"{rates.message.fixed_s * 1e3:.2f} ms; the optimizer on a rank with both whole modules {end_s * 1e3:.1f} ms"
    )


def _both(job: MimoJob, rates: MimoRates, tp: int) -> str:
    item_s, sample_s = _unit_s(job.encoder, rates.encoder, tp), _unit_s(job.language, rates.language, tp)
    return f"{item_s * 1e3:.1f} ms for an item and {sample_s * 1e3:.1f} ms for a sample"


def _unit_s(work: ModuleWork, rates: ModuleRates, tp: int) -> float:
    return sum(rates.pass_s(work, ModuleLayout(tp=tp), 0, 1, is_backward) for is_backward in (False, True))
