"""Which layers a pipeline stage has."""

from __future__ import annotations

from zenith_tune.errors import UsageError


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """Return the layers of a stage, as even as they go.

    >>> [list(stage_layers(5, stage, 3)) for stage in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    if num_stages > num_layers:
        raise UsageError(f"pp must not exceed the layers, but got pp {num_stages} and {num_layers} layers.")
    return range(num_layers * stage // num_stages, num_layers * (stage + 1) // num_stages)
