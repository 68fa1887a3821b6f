"""The command `zenithtune probe`: memory and work of a cluster's layout, measured on one GPU, rank by rank."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.errors import DiskFullError, StudyInterrupted, UsageError
from zenith_tune.planner.limits import MAX_BATCH, RISK

if TYPE_CHECKING:
    from zenith_tune.describe.job_spec import PlanSubject
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.planner.planner import Planner
    from zenith_tune.probe.probe_job import ProbeJob
    from zenith_tune.probe.probed_layout import ProbedLayout
    from zenith_tune.probe.prober import Prober
    from zenith_tune.report.probe import ProbeReport

Options = dict[str, Any]
MAX_PROBES = 64
NUM_STEPS = 3
"""Whole steps after the first: enough for a median, and each costs seconds."""


@click.command(short_help="Measure a cluster's layout on one GPU: memory and work of single ranks.")
@click.option("--layout", "layouts", metavar="LAYOUT", multiple=True,
              help="What to probe, e.g. 'TP8 PP4'. May be given again. [default: the command's own]")  # fmt: skip
@click.option("--top", type=click.IntRange(1, MAX_PROBES), metavar="K", help="Probe the best K layouts of the plan.")
@click.option("--args", "args", metavar="K=V,...", multiple=True, help="Arguments of preset megatron-lm, e.g. gbs=256.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of the cluster. [default: the command's]")
@click.option("--cluster", metavar="NAME|PATH", help="The cluster, e.g. h200x64. [default: more of this machine's GPU]")
@click.option("--gbs", type=click.IntRange(1, MAX_BATCH), metavar="N", help="Global batch. [default: the command's]")
@click.option("--model", metavar="NAME|PATH", help="The model, where the command does not tell its shape.")
@click.option("--vocab", type=click.IntRange(min=1), metavar="N", help="Vocabulary, where only a tokenizer tells it.")
@click.option("--steps", type=click.IntRange(min=1), default=NUM_STEPS, show_default=True, metavar="N",
              help="Whole steps to measure on each rank.")  # fmt: skip
@click.option("--timeout", type=float, metavar="S", help="End a rank after S seconds.")
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Coefficients of the plan that is compared. [default: built in]")  # fmt: skip
@click.option("--output-dir", type=click.Path(path_type=Path), help="Where probes are kept. [default: zenithtune-out]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; text for people on stderr.")
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def probe(command: tuple[str, ...], **options: Any) -> int:
    """Run one rank of each stage of a layout for a few steps, with Megatron-LM's --fake-process-group, on one GPU.

    Peak memory and the time of the work are measured; communication and the pipeline's bubble, for which all ranks
    would be needed, are modelled. COMMAND is your Megatron-LM command, or a script that runs it.

    \b
    zenithtune probe --gpus 64 --layout 'TP8 PP4' -- torchrun --nproc-per-node 8 pretrain_gpt.py ...
    zenithtune probe --cluster h200x64 --top 3 -- bash train.sh
    """
    return run_probe(command, options)


def run_probe(command: tuple[str, ...], options: Options) -> int:
    """Probe what the options ask for, print it and write it down."""
    if not command:
        raise UsageError("a probe needs your training command", hint="give it after --")
    if options["layouts"] and options["top"]:
        raise UsageError("--layout names what is probed and --top leaves it to the plan", hint="leave one of them out")
    from zenith_tune.tuning.watch import Timeouts

    Timeouts(fixed_s=options["timeout"])  # refuses what is none
    _refuse_files(options["output_dir"], options["calibration"])
    request = _request(command, options)
    # Before the planner is loaded, so that a mistake is told at once.
    named = [] if options["top"] else request.named(options["layouts"])
    planner = request.planner(options["calibration"])
    layouts = named or _best(request.job, planner, options["top"], options.get("risk", RISK))
    try:
        with _full_disk_is_clear(options["output_dir"]):
            probed = _probed(request, planner, layouts, options)
    except StudyInterrupted as error:  # caught here, because click takes every KeyboardInterrupt for Ctrl-C
        return 128 + error.signum
    return 0 if any(each.ok for each in probed) else 1


def _refuse_files(output_dir: Path | None, calibration: Path | None) -> None:
    """Refuse what cannot be written or read before minutes are spent on a probe."""
    from zenith_tune.record.storage import expanded
    from zenith_tune.study.files import open_regular

    if output_dir is not None:
        place = expanded(output_dir).absolute()
        there = next(path for path in (place, *place.parents) if os.path.lexists(path))
        if not os.access(f"{there}/.", os.W_OK | os.X_OK):
            problem = f"the output folder {place} cannot be written, as {there} is no folder that you may write to"
            raise UsageError(problem, hint="choose another --output-dir")
    if calibration is not None:
        try:
            open_regular(Path(os.path.realpath(calibration))).close()
        except OSError as error:
            problem = f"calibration {str(calibration)!r} cannot be read ({error.strerror})"
            raise UsageError(problem, hint="check the path") from None


@contextlib.contextmanager
def _full_disk_is_clear(output_dir: Path | None) -> Iterator[None]:
    """Turn 'no space left', whoever met it, into one line in words of a probe."""
    from zenith_tune.record.folder import DEFAULT_OUTPUT_DIR
    from zenith_tune.record.storage import is_disk_full

    try:
        yield
    except (OSError, UsageError, DiskFullError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or not is_disk_full(cause):
            raise
        problem = f"no space left on the disk of {output_dir or DEFAULT_OUTPUT_DIR}"
        hint = "free some and probe again, or choose another --output-dir"
        raise DiskFullError(f"{problem}: {hint}; layouts that were shown are kept") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Hold the job, and what the planner needs to know of it."""

    job: ProbeJob
    subject: PlanSubject

    def named(self, texts: tuple[str, ...]) -> list[Layout]:
        """Return the layouts that are named, or the command's own."""
        return [self._checked(self.job.named(text)) for text in texts] or [self._checked(self.job.job.start)]

    def planner(self, calibration: Path | None) -> Planner:
        """Return the planner, with a calibration from a file where one is given."""
        from zenith_tune.calibrate.calibration_file import load_calibration
        from zenith_tune.planner.planner import Planner

        known = load_calibration(calibration) if calibration else None
        return Planner(self.subject.model, self.subject.cluster, self.subject.job, known)

    def _checked(self, layout: Layout) -> Layout:
        from zenith_tune.layouts.rules import broken_rules

        broken = broken_rules(self.subject.model, self.subject.job, layout)
        # How a pipeline is cut may be written down in the command itself.
        reasons = [reason for rule, reason in broken if not (rule.name == "pipeline" and self.job.job.has_custom_split)]
        if reasons:
            raise UsageError(
                f"Megatron-LM would refuse this layout, because {reasons[0]}", hint="choose another --layout"
            )
        return layout


def _best(job: ProbeJob, planner: Planner, top: int, risk: float) -> list[Layout]:
    """Return the layouts that the plan puts first."""
    layouts = list(dict.fromkeys(job.layouts()))
    planned = [each for each in planner.evaluate(layouts) if each.oom_probability < risk]
    if not planned:
        problem = f"none of {len(layouts)} layouts is planned to fit"
        raise UsageError(problem, hint="name one by --layout, or take more GPUs")
    best: dict[Layout, Layout] = {}
    for each in sorted(planned, key=lambda each: each.step_s):
        # Of one cut the fastest recomputation stands for the others, which a probe would find as slow as planned.
        best.setdefault(replace(each.layout, recompute="none", recompute_layers=0), each.layout)
    return list(best.values())[:top]


def _request(command: tuple[str, ...], options: Options) -> _Request:
    from zenith_tune.presets.megatron_lm.job import MegatronLmOverrides
    from zenith_tune.probe.probe_job import ProbeJob
    from zenith_tune.registry import construct, parse_pairs
    from zenith_tune.shell import CommandLine

    named = {"n_gpus": options["gpus"], **{name: options[name] for name in ("gbs", "model", "vocab", "cluster")}}
    pairs = parse_pairs(",".join(options["args"]), "--args", "gbs=256") if options["args"] else {}
    args = {**pairs, **{name: value for name, value in named.items() if value is not None}}
    cluster = args.pop("cluster", None)
    args.setdefault("n_gpus", _num_gpus(cluster))
    given = construct(MegatronLmOverrides, args, "probe")
    job = ProbeJob.of(CommandLine.from_argv(command).text, given)
    return _Request(job=job, subject=job.subject(cluster))


def _num_gpus(cluster: str | None) -> int | None:
    """Return the GPUs of a cluster that is named; those of this machine say nothing of a larger one."""
    if cluster is None:
        return None
    from zenith_tune.describe.cluster_catalog import LOCAL, load_cluster

    return None if cluster == LOCAL else load_cluster(cluster).num_gpus


def _probed(request: _Request, planner: Planner, layouts: list[Layout], options: Options) -> list[ProbedLayout]:
    from rich.console import Console

    from zenith_tune.calibrate.calibration_fit import LEAST_RUNS
    from zenith_tune.calibrate.probed_runs import FILE_NAME
    from zenith_tune.probe.probe_file import probe_lock, probe_object
    from zenith_tune.probe.probed_layout import ranked
    from zenith_tune.probe.prober import Prober
    from zenith_tune.report.probe import ProbeReport
    from zenith_tune.runners.local.runner import LocalRunner
    from zenith_tune.tuning.place import new_folder

    console = Console(stderr=options["as_json"], highlight=False, markup=False, emoji=False)
    report, runner = ProbeReport(console, gpu=planner.cluster.gpu.name), LocalRunner(owns_process=True)
    folder = new_folder(options["output_dir"], "probe")
    prober = Prober(
        planner=planner,
        runner=runner,
        folder=folder,
        run_of=request.job.run_of,
        num_steps=options["steps"],
        timeout_s=options["timeout"],
        tell=lambda line: console.print(f"running {line}", style="dim", soft_wrap=True),
    )
    lock = probe_lock(folder)
    try:
        lock.acquire()
        probed = _one_by_one(request, prober, layouts, report)
    finally:
        runner.close()
        lock.release()
    if len(probed) > 1:
        report.ranking(ranked(probed))
    report.say(f"written: {folder / FILE_NAME}")
    if sum(stage.probe.ok for each in probed for stage in each.stages) >= LEAST_RUNS:
        report.say(f"use it: zenithtune calibrate --probes {folder} --output mine.json")
    if options["as_json"]:
        content = probe_object(request.subject, probed)
        click.echo(json.dumps({**content, "ranked": [each.planned.name for each in ranked(probed)]}, allow_nan=False))
    return probed


def _one_by_one(request: _Request, prober: Prober, layouts: list[Layout], report: ProbeReport) -> list[ProbedLayout]:
    """Probe the layouts, once nothing is left of a probe that was killed; each is shown and kept when it is done."""
    from zenith_tune.probe.probe_file import end_leftovers, probe_object, write_probe
    from zenith_tune.shell.secrets import find_secrets
    from zenith_tune.tuning.interruption import Interruption

    runner, probed = prober.runner, []
    try:
        with Interruption(runner.interrupt, lambda: runner.num_running > 0) as interruption:
            for left in end_leftovers(prober.folder.parent, runner, find_secrets(request.job.command)):
                report.say(f"{left.name} was cut off: what it left running is ended, and its logs are masked")
            for number, layout in enumerate(layouts, start=1):
                interruption.check()
                found = prober.probe(layout, number)
                if not found.ok:
                    interruption.check()  # a rank that was ended from outside says nothing of its layout
                probed.append(found)
                write_probe(prober.folder, probe_object(request.subject, probed))
                report.layout(found)
            interruption.check()
    except StudyInterrupted:
        report.say(f"interrupted: {len(probed)} of {len(layouts)} layouts are probed, in {prober.folder}")
        raise
    return probed
