"""A point of the search written into the user's command, in the spelling that the command has."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import is_accounted, is_laid_out, laid_out_chunks
from zenith_tune.presets.megatron.command import OPTIONS
from zenith_tune.presets.megatron_lm.job import CUSTOM_SPLITS, MegatronJob
from zenith_tune.presets.megatron_lm.options import pipeline_layout
from zenith_tune.presets.megatron_lm.overlap import OPTION as MODULES
from zenith_tune.presets.megatron_lm.overlap import module_of, own_modules, wanted_overlap
from zenith_tune.presets.megatron_lm.rules import GATHER, GRADS, SWITCH
from zenith_tune.presets.megatron_lm.version import FOLDED_EXPERTS, VIRTUAL_STAGES
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_or_set, fill_placeholders, placeholder_names
from zenith_tune.study.parameters import Value

SIZES = {name: OPTIONS[name] for name in ("tp", "pp", "cp", "mbs", "gbs")}
EXPERTS = {name: OPTIONS[name] for name in ("ep", "etp")}
LAYOUT, _, _, *ACCOUNT = CUSTOM_SPLITS
VIRTUAL, PER_CHUNK = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
PIPELINE = (VIRTUAL, PER_CHUNK, *CUSTOM_SPLITS)
RECOMPUTE = (
    OPTIONS["recompute_granularity"],
    OPTIONS["recompute_method"],
    OPTIONS["recompute_num_layers"],
    "--recompute-activations",
)
SEQUENCE, SHARDING = "--sequence-parallel", "--use-distributed-optimizer"
BARE = frozenset((*ACCOUNT, RECOMPUTE[-1], SEQUENCE, SHARDING, GRADS, GATHER, *SWITCH.values()))
"""Switches, which take no value."""
WRITTEN: Mapping[str, tuple[str, ...]] = {
    **{name: (option,) for name, option in (SIZES | EXPERTS).items()},
    "pp": (SIZES["pp"], *PIPELINE),
    "vp": PIPELINE,
    "recompute": RECOMPUTE,
    "zero": (SHARDING, GATHER),
    "sequence_parallel": (SEQUENCE,),
    "overlap": (GRADS, GATHER),
    **{name: (option,) for name, option in SWITCH.items()},
    "modules": (MODULES,),
}
"""The options that each parameter sets or takes away."""
SET_ONLY = frozenset((*(SIZES | EXPERTS).values(), MODULES))
"""Those that are never taken away: Megatron takes the last value of an option that is given twice."""

Wanted = dict[str, Value | None]
"""Options with their values; True for a switch that is on, None for what must not be there."""


def written_command(command: str, job: MegatronJob, at: Layout, params: Mapping[str, Value]) -> str:
    """Return a command whose placeholders are filled, and in which all other options of a layout are set.

    A script that does not pass its arguments on takes values by placeholders alone: nothing is set for it.
    """
    values = {**params, "gbs": at.global_batch, "n_gpus": at.num_gpus}
    filled = placeholder_names(command, values)
    if job.run is not None and job.run.script and job.run.added_at is None:
        return fill_placeholders(command, values)[0]
    sizes = SIZES | _expert_sizes(job)
    line = ParsedCommand.of(fill_or_set(command, sizes, values))
    wanted: Wanted = {SEQUENCE: at.sequence_parallel or None}
    if "vp" not in filled:
        wanted |= _pipeline(job, at)
    if "recompute" not in filled:
        wanted |= _recompute(at, module_of(str(params.get("recompute", ""))))
    if "zero" in params:
        wanted |= {SHARDING: True} if at.zero else {SHARDING: None, GATHER: None}
    unfilled = {name: value for name, value in params.items() if name not in filled}
    return _edited(line, wanted | wanted_overlap(unfilled)).text


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
    line = ParsedCommand.of(command)
    if "modules" in left and line.has(MODULES) and len(own := own_modules(job)) > 1:
        problem = f"{MODULES} must name one module for others to be tried, but has {' '.join(own)}"
        raise UsageError(problem, hint="take it out of the command, or leave modules out of search")
    for option in (option for name in left for option in WRITTEN[name]):
        if option not in SET_ONLY and job.args.has(option) and not _is_removable(line, option):
            where = run.script or "a variable of your command"
            problem = f"{option} is set in {where}, where a trial cannot take it away"
            raise UsageError(
                problem, hint=f"take it out there, or leave {' and '.join(_owners(option, left))} out of search"
            )
        if run.added_at is not None and option in SET_ONLY and _is_behind(job, option):
            problem = f'{run.script} sets {option} behind "$@", where it wins over what a trial adds'
            raise UsageError(problem, hint=f'put "$@" at the end of the line that runs {program}')


def _expert_sizes(job: MegatronJob) -> dict[str, str]:
    if not job.has_experts:
        return {}
    return EXPERTS if job.features.has(FOLDED_EXPERTS) else {"ep": EXPERTS["ep"]}


def _owners(option: str, names: list[str]) -> list[str]:
    return [name for name in names if option in WRITTEN[name]]


def _is_removable(line: ParsedCommand, option: str) -> bool:
    """Tell whether an option stands in the command itself; a word behind a switch would be taken for its value."""
    return line.get(option) == "" if option in BARE else line.has(option)


def _is_behind(job: MegatronJob, option: str) -> bool:
    assert job.run is not None and job.run.added_at is not None
    return type(job.args).of(job.run.arguments[job.run.added_at :]).has(option)


def _pipeline(job: MegatronJob, at: Layout) -> Wanted:
    """Return the options of the pipeline's split: even, with embedding and loss counted, or written down."""
    model, start = job.model, job.start
    if job.has_custom_split and (at.pp, at.vp) == (start.pp, start.vp):
        return {}
    wanted: Wanted = dict.fromkeys(PIPELINE)
    if model is not None and is_laid_out(model.num_layers, pp=at.pp, vp=at.vp):
        chunks = laid_out_chunks(model.num_layers, pp=at.pp, vp=at.vp)
        return {**wanted, LAYOUT: pipeline_layout(chunks, num_mtp_layers=model.num_mtp_layers)}
    if at.vp > 1 and model is not None and not job.features.has(VIRTUAL_STAGES):
        return {**wanted, PER_CHUNK: model.num_layers // (at.pp * at.vp)}
    if at.vp > 1:
        wanted[VIRTUAL] = at.vp
    if model is not None and is_accounted(model.num_layers, pp=at.pp, vp=at.vp):
        wanted |= dict.fromkeys(ACCOUNT, True)
    return wanted


def _recompute(at: Layout, module: str) -> Wanted:
    granularity, method, num_layers, _ = RECOMPUTE
    kind, _, how = at.recompute.partition("/")
    wanted: Wanted = dict.fromkeys(RECOMPUTE)
    if kind != "none":
        wanted[granularity] = kind
    if how:
        wanted |= {method: how, num_layers: at.recompute_layers}
    return {**wanted, MODULES: module} if module else wanted


def _edited(line: ParsedCommand, wanted: Wanted) -> ParsedCommand:
    """Return the command with these options and switches, and without those that must not be there."""
    for option, value in wanted.items():
        if value is None and _is_removable(line, option):
            line = line.remove(option)
    line = line.set({option: value for option, value in wanted.items() if value is not None and value is not True})
    for option, value in wanted.items():
        if value is True:
            line = line.add_flag(option)
    return line
