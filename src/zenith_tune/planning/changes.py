"""What one layout has that another has not, in words."""

from __future__ import annotations

from zenith_tune.layouts.layout import Layout

SIZES = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "zero")


def changes(old: Layout, new: Layout) -> str:
    """Return what changes from one layout to another.

    >>> changes(Layout(num_gpus=8, tp=2), Layout(num_gpus=8, tp=4, recompute="selective"))
    'tp 2 -> 4, dp 4 -> 2, recompute none -> selective'
    """
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in SIZES]
    pairs += [("mbs", old.micro_batch, new.micro_batch), ("gbs", old.global_batch, new.global_batch)]
    pairs += [("recompute", _recompute(old), _recompute(new))]
    pairs += [("sp", _switch(old.sequence_parallel), _switch(new.sequence_parallel))]
    pairs += [("flash", _switch(old.flash_attention), _switch(new.flash_attention))]
    return ", ".join(f"{name} {a} -> {b}" for name, a, b in pairs if a != b) or "nothing"


def _recompute(layout: Layout) -> str:
    return layout.recompute + (str(layout.recompute_layers) if layout.recompute_layers else "")


def _switch(on: bool) -> str:
    return "on" if on else "off"
