"""What switches that stand in the user's command ask of a layout: Megatron-LM refuses to start with any other.

Each is checked by megatron/training/arguments.py (validate_args) or TransformerConfig of main of 2026-08-22.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.layouts.layout import Layout

Holds = Callable[[Layout, Layout], bool]
"""Whether a layout will do, given the one that the command has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Hold an option and its need; `values` are those that need it, none for whatever it is set to."""

    option: str
    need: str
    holds: Holds
    values: tuple[str, ...] = ()
    about_recompute: bool = False

    def is_in(self, args: MegatronArgs) -> bool:
        """Tell whether a command has the switch; one that is set to 0 is off."""
        value = args.text(self.option)
        return args.has(self.option) and (value in self.values if self.values else value != "0")

    def reason(self, at: Layout, start: Layout) -> str | None:
        """Return why a layout will not do."""
        if self.holds(at, start):
            return None
        return f"{' '.join((self.option, *self.values[:1]))} in your command needs {self.need}"


def _is_full(at: Layout) -> bool:
    return at.recompute.startswith("full")


TP_OVERLAP, EP_OVERLAP = "--tp-comm-overlap", "--overlap-moe-expert-parallel-comm"
WITH_STEP, OFFLOADING = "--overlap-param-gather-with-optimizer-step", "--cpu-offloading-num-layers"
_GRAPHS = (("--enable-cuda-graph", ()), ("--external-cuda-graph", ()), ("--cuda-graph-impl", ("local",)))
SWITCHES: tuple[Switch, ...] = (
    Switch(option="--transformer-impl", values=("local",), need="cp 1", holds=lambda at, start: at.cp == 1),
    Switch(option=TP_OVERLAP, need="sequence parallelism", holds=lambda at, start: at.sequence_parallel),
    Switch(option="--defer-embedding-wgrad-compute", need="pp above 1", holds=lambda at, start: at.pp > 1),
    Switch(
        option="--no-overlap-p2p-communication",
        need="vp 1, or pp above 2",
        holds=lambda at, start: at.vp == 1 or at.pp > 2,
    ),
    Switch(option=WITH_STEP, need="vp above 1", holds=lambda at, start: at.vp > 1),
    *(
        Switch(option=option, need="the distributed optimizer", holds=lambda at, start: at.zero > 0)
        for option in (WITH_STEP, "--fp8-param-gather")
    ),
    Switch(
        option="--hierarchical-context-parallel-sizes",
        need="cp as it is",
        holds=lambda at, start: at.cp == start.cp,
    ),
    Switch(
        option="--use-tp-pp-dp-mapping",
        need="dp equal to edp where pp is above 1",
        holds=lambda at, start: at.pp == 1 or at.dp == at.edp,
    ),
    Switch(option=EP_OVERLAP, need="ep above 1", holds=lambda at, start: at.ep > 1),
    Switch(option=EP_OVERLAP, need="vp above 1 where pp is", holds=lambda at, start: at.pp == 1 or at.vp > 1),
    Switch(
        option=EP_OVERLAP,
        need="no full recomputation",
        holds=lambda at, start: not _is_full(at),
        about_recompute=True,
    ),
    Switch(option=OFFLOADING, need="pp 1", holds=lambda at, start: at.pp == 1),
    Switch(
        option=OFFLOADING,
        need="no recomputation",
        holds=lambda at, start: at.recompute == "none",
        about_recompute=True,
    ),
    Switch(
        option="--distribute-saved-activations",
        need="full recomputation and tp above 1 without sequence parallelism",
        holds=lambda at, start: _is_full(at) and at.tp > 1 and not at.sequence_parallel,
        about_recompute=True,
    ),
    *(
        Switch(
            option=option,
            values=values,
            need="no full recomputation",
            holds=lambda at, start: not _is_full(at),
            about_recompute=True,
        )
        for option, values in (
            *_GRAPHS,
            ("--cuda-graph-impl", ("transformer_engine",)),
            ("--moe-layer-recompute", ()),
        )
    ),
)


def switches_in(args: MegatronArgs) -> tuple[Switch, ...]:
    """Return the switches that a command has.

    >>> [switch.need for switch in switches_in(MegatronArgs.of(["--tp-comm-overlap", "--bf16"]))]
    ['sequence parallelism']
    """
    return tuple(switch for switch in SWITCHES if switch.is_in(args))
