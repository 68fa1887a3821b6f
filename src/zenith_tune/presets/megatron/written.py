"""A point of the search written into the user's command, in the spelling that the command has."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.short_steps import ShortSteps
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.command import without_layout
from zenith_tune.presets.megatron.job import BALANCED, MegatronJob
from zenith_tune.presets.megatron.levers.offered import lever_options
from zenith_tune.presets.megatron.options import (
    BALANCED_ROUTING,
    GATHER,
    GRADS,
    LOG_INTERVAL,
    OPTIONS,
    PER_CHUNK,
    PIPELINE,
    RECOMPUTE,
    SEQUENCE_PARALLEL,
    SHARDING,
    VIRTUAL,
    Wanted,
    is_removable,
    layout_options,
    with_options,
)
from zenith_tune.presets.megatron.overlap import OPTION as MODULES
from zenith_tune.presets.megatron.overlap import module_of, own_modules, wanted_overlap
from zenith_tune.presets.megatron.rules import SWITCH
from zenith_tune.presets.megatron.version import FOLDED_EXPERTS, VIRTUAL_STAGES
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_or_set, fill_placeholders, placeholder_names
from zenith_tune.study.parameters import Value

SIZES = {name: OPTIONS[name] for name in ("tp", "pp", "cp", "mbs", "gbs")}
EXPERTS = {name: OPTIONS[name] for name in ("ep", "etp")}
WRITTEN: Mapping[str, tuple[str, ...]] = {
    **{name: (option,) for name, option in (SIZES | EXPERTS).items()},
    "pp": (SIZES["pp"], *PIPELINE),
    "vp": PIPELINE,
    "recompute": RECOMPUTE,
    "zero": (SHARDING, GATHER),
    "sequence_parallel": (SEQUENCE_PARALLEL,),
    "overlap": (GRADS, GATHER),
    **{name: (option,) for name, option in SWITCH.items()},
    "modules": (MODULES,),
}
"""The options that each parameter sets or takes away."""
SET_ONLY = frozenset((*(SIZES | EXPERTS).values(), MODULES))
"""Those that are never taken away: Megatron takes the last value of an option that is given twice."""
ONE_BY_DEFAULT = dict.fromkeys((OPTIONS[name] for name in ("tp", "pp", "cp", "ep")), 1)
"""What Megatron takes where it is not given."""
MIN_WHOLE_STEPS = 3
"""Whole steps that must be left to a run that begins with short ones."""


def written_command(command: str, job: MegatronJob, layout: Layout, params: Mapping[str, Value]) -> str:
    """Return a command whose placeholders are filled, and in which a layout's options are set where they differ.

    A script that does not pass its arguments on takes values by placeholders alone: nothing is set for it.
    """
    values = {**params, "gbs": layout.global_batch, "n_gpus": layout.num_gpus}
    filled = placeholder_names(command, values)
    if not job.takes_options:
        return fill_placeholders(command, values)[0]
    experts = EXPERTS if job.features.has(FOLDED_EXPERTS) else {"ep": EXPERTS["ep"]}
    sizes = SIZES | (experts if job.has_experts else {})
    own = job.args if job.fixed is None and job.is_read_whole else None
    missing = {name: option for name, option in sizes.items() if name in filled or not _has(own, option, values[name])}
    line = ParsedCommand.of(fill_or_set(command, missing, values))
    switches = wanted_switches(job, layout, params, filled)
    text = with_options(line, {name: value for name, value in switches.items() if not _has(own, name, value)}).text
    return text if job.fixed is None else without_layout(text)


def _has(args: MegatronArgs | None, option: str, value: Value | None) -> bool:
    """Return whether arguments have this value already, or Megatron takes it by itself; not where they are unsure."""
    if args is None or value is None:
        return False
    own = args.text(option)
    return own == "" if value is True else (own or str(ONE_BY_DEFAULT.get(option, ""))) == str(value)


def wanted_switches(
    job: MegatronJob, layout: Layout, params: Mapping[str, Value], filled: Collection[str] = ()
) -> Wanted:
    """Return what a point sets and takes away besides the sizes, without what a placeholder says or a command keeps."""
    model, start = job.model, job.start
    is_old = model is not None and not job.features.has(VIRTUAL_STAGES)
    wanted = layout_options(
        layout,
        num_layers=None if model is None else model.num_layers,
        num_mtp_layers=0 if model is None else model.num_mtp_layers,
        has_experts=job.has_experts,
        chunks_by=PER_CHUNK if is_old else VIRTUAL,
    )
    kept = {*SIZES.values(), *EXPERTS.values()}
    is_own_split = job.has_custom_split and job.fixed is None and (layout.pp, layout.vp) == (start.pp, start.vp)
    if "vp" in filled or is_own_split:
        kept |= {*PIPELINE}
    if "recompute" in filled:
        kept |= {*RECOMPUTE}
    elif module := module_of(str(params.get("recompute", ""))):
        wanted[MODULES] = module
    if "zero" not in params:
        kept.add(SHARDING)
    elif not layout.zero:
        wanted[GATHER] = None
    switches = {option: value for option, value in wanted.items() if option not in kept}
    unfilled = {name: value for name, value in params.items() if name not in filled}
    return switches | wanted_overlap(unfilled) | lever_options(job, unfilled)


def measured_command(command: str, job: MegatronJob) -> str:
    """Return a command as it is measured: with a line of the log for every iteration, and its routing as asked for."""
    if not job.takes_options:
        return command
    wanted: Wanted = {LOG_INTERVAL: 1, **({BALANCED_ROUTING: True} if job.routing == BALANCED else {})}
    return with_options(ParsedCommand.of(command), wanted).text


UNEQUAL_STEPS = (
    *("--rampup-batch-size", "--step-batch-size-schedule", "--decrease-batch-size-if-needed"),
    *("--enable-cuda-graph", "--external-cuda-graph", "--cuda-graph-impl"),
    *("--defer-embedding-wgrad-compute", "--hybrid-context-parallel", "--iterations-to-skip", "--perform-rl-step"),
)
"""Options by which a step is not a fixed part and equal micro-batches, or cannot have fewer: graphs hold them all."""
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"


def short_steps(
    job: MegatronJob, layout: Layout, levers: Mapping[str, Value], num_steps: int | None
) -> ShortSteps | None:
    """Return the steps of fewer micro-batches that a run of a layout may begin with, as far as these are equal."""
    args, is_logged = job.args, job.takes_options or job.args.text(LOG_INTERVAL) == "1"
    switches = lever_options(job, levers)
    # Micro-batches of experts differ too much for a line, balanced or not (h200-short-steps-2026-11-19.json).
    if not is_logged or job.has_experts or any(args.has(option) or option in switches for option in UNEQUAL_STEPS):
        return None
    group = (args.count(GROUP) or layout.pp) if layout.vp > 1 else 0
    found = ShortSteps.of(layout.num_micro_batches, stages=layout.pp, group=group)
    last = min((each for each in (num_steps, args.count("--exit-interval")) if each), default=None)
    # A run that ends sooner shall have whole steps too.
    return None if found is None or (last is not None and last < len(found.numbers) + MIN_WHOLE_STEPS) else found


def routing_notes(job: MegatronJob) -> list[str]:
    """Return how tokens go to experts in what is measured."""
    if not job.has_experts or job.args.has(BALANCED_ROUTING):
        return []
    why = "a router that is not trained sends most tokens to a few experts"
    if job.routing == BALANCED:
        how = f"runs are measured with balanced routing ({BALANCED_ROUTING})"
        return [f"{how}, as {why}; the best command is without; routing=as-is measures your router's own"]
    return [f"runs are measured with your router's own choices: {why}, which takes memory and time"]


def refuse_unwritable(command: str, job: MegatronJob, names: list[str]) -> None:
    """Raise where what `names` stand for cannot be set, or taken away, from outside the script that has it."""
    run = job.run
    if run is None:
        return
    left = [name for name in names if name not in placeholder_names(command, names)]
    program = run.program.rpartition("/")[2]
    if run.script and run.added_at is None and left:
        problem = f"{run.script} must pass its arguments on for {', '.join(left)} to be set, but does not"
        hint = (
            f'hand "$@" on to the end of the line that runs {program}, or write {{{left[0]}}} where its value belongs'
        )
        raise UsageError(problem, hint=hint)
    line, fixed = ParsedCommand.of(command), job.fixed or job.args
    behind = MegatronArgs.of(run.arguments[run.added_at :] if run.added_at is not None else ())
    if "modules" in left and line.has(MODULES) and len(own := own_modules(job)) > 1:
        problem = f"{MODULES} must name one module for others to be tried, but has {' '.join(own)}"
        raise UsageError(problem, hint="take it out of the command, or leave modules out of search")
    for option in (option for name in left for option in WRITTEN[name]):
        if option not in SET_ONLY and fixed.has(option) and not is_removable(line, option):
            where = run.script or "a variable of your command"
            problem = f"{option} is set in {where}, where a trial cannot take it away"
            owners = " and ".join(name for name in left if option in WRITTEN[name])
            raise UsageError(problem, hint=f"take it out there, or leave {owners} out of search")
        if option in SET_ONLY and behind.has(option):
            problem = f'{run.script} sets {option} behind "$@", where it wins over what a trial adds'
            raise UsageError(problem, hint=f'put "$@" at the end of the line that runs {program}')
