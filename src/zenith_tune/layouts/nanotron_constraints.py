"""What nanotron cannot run whatever the memory: None where a rule holds, else the reason in words.

Of the crashed runs of the Ultra-Scale Playbook a fifth break one of the two; no run that ended well breaks either.
"""

from __future__ import annotations

from zenith_tune.layouts.stages import empty_cost_stages


def check_micro_batches(num_micro_batches: int, *, pp: int) -> str | None:
    """Check micro-batches >= pp - 1, which OneForwardOneBackwardPipelineEngine asserts.

    >>> check_micro_batches(4, pp=8)
    'micro-batches must be at least pp-1, but 4 < 7'
    """
    if num_micro_batches >= pp - 1:
        return None
    return f"micro-batches must be at least pp-1, but {num_micro_batches} < {pp - 1}"


def check_filled_stages(num_layers: int, *, layer_cost: float, head_cost: float, pp: int) -> str | None:
    """Check that blocks dealt by cost reach every stage (`build_model`); a stage without any has no parameters.

    >>> check_filled_stages(16, layer_cost=1.0, head_cost=4.0, pp=16)
    'every stage must hold a block, but 16 layers dealt by cost leave 1 of 16 stages empty'
    """
    empty = int(empty_cost_stages(float(num_layers), layer_cost, head_cost, float(pp)))
    if not empty:
        return None
    return f"every stage must hold a block, but {num_layers} layers dealt by cost leave {empty} of {pp} stages empty"
