"""The command `zenithtune probe`: memory and work of a cluster's layout, measured on one GPU, rank by rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import (
    BATCH,
    COUNT,
    Options,
    args_option,
    calibration_option,
    debug_option,
    echo_json,
    pairs,
    path_option,
)
from zenith_tune.errors import DiskFullError, StudyInterrupted, UsageError
from zenith_tune.planner.limits import MAX_PROBES, RISK

if TYPE_CHECKING:
    from zenith_calibration.probe.probe_job import ProbeJob
    from zenith_calibration.probe.probed_layout import ProbedLayout
    from zenith_calibration.probe.prober import Prober
    from zenith_calibration.probe.report import ProbeReport
    from zenith_tune.describe.job_spec import PlanSubject
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.planner.planner import Planner

NUM_STEPS = 3
"""Whole steps after the first: enough for a median, and each costs seconds."""


@click.command(short_help="Measure a cluster's layout on one GPU: memory and work of single ranks.")
@click.option("--layout", "layouts", metavar="LAYOUT", multiple=True,
              help="What to probe, e.g. 'TP8 PP4'. May be given again. [default: the command's own]")  # fmt: skip
@click.option("--top", type=click.IntRange(1, MAX_PROBES), metavar="K", help="Probe the best K layouts of the plan.")
@args_option("Arguments of preset megatron-lm, e.g. gbs=256.")
@click.option("--gpus", type=COUNT, metavar="N", help="GPUs of the cluster. [default: the command's]")
@click.option("--cluster", metavar="NAME|PATH", shell_complete=completion.clusters,
              help="The cluster, e.g. h200x64. [default: more of this machine's GPU]")  # fmt: skip
@click.option("--gbs", type=BATCH, metavar="N", help="Global batch. [default: the command's]")
@click.option("--model", metavar="NAME|PATH", shell_complete=completion.models,
              help="The model, where the command does not state its shape.")  # fmt: skip
@click.option("--vocab", type=COUNT, metavar="N", help="Vocabulary, where only a tokenizer knows it.")
@click.option("--steps", type=COUNT, default=NUM_STEPS, show_default=True, metavar="N",
              help="Whole steps to measure on each rank.")  # fmt: skip
@click.option("--timeout", type=float, metavar="S", help="End a rank after S seconds.")
@calibration_option("of the plan that is compared")
@path_option("--output-dir", metavar=None, help="Where probes are kept. [default: zenithtune-out]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; text for people on stderr.")
@debug_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...",
                shell_complete=completion.files)  # fmt: skip
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
    job, subject = _job(command, options)
    # Before the planner is loaded, so that a mistake is reported at once.
    named = [] if options["top"] else [job.named(text) for text in options["layouts"]] or [job.job.start]
    for layout in named:
        job.refuse_illegal(layout, subject)
    from zenith_tune.calibrate.calibration_file import load_calibration
    from zenith_tune.planner.planner import Planner

    calibration = load_calibration(options["calibration"]) if options["calibration"] else None
    planner = Planner(subject.model, subject.cluster, subject.job, calibration)
    layouts = named or job.best(planner, options["top"], options.get("risk", RISK))
    try:
        with _full_disk_is_clear(options["output_dir"]):
            probed = _probed(job, planner, layouts, options)
    except StudyInterrupted as error:  # caught here, because click takes every KeyboardInterrupt for Ctrl-C
        return 128 + error.signum
    return 0 if any(each.ok for each in probed) else 1


def _refuse_files(output_dir: Path | None, calibration: Path | None) -> None:
    """Refuse what cannot be written or read before the planner is loaded, and minutes are spent on a probe."""
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
    """Turn 'no space left', whoever met it, into one line."""
    from zenith_tune.record.folder import DEFAULT_OUTPUT_DIR
    from zenith_tune.study.faults import is_disk_full

    try:
        yield
    except (OSError, UsageError, DiskFullError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or not is_disk_full(cause):
            raise
        problem = f"no space left on the disk of {output_dir or DEFAULT_OUTPUT_DIR}"
        hint = "free some and probe again, or choose another --output-dir"
        raise DiskFullError(f"{problem}: {hint}; layouts that were shown are kept") from error


def _job(command: tuple[str, ...], options: Options) -> tuple[ProbeJob, PlanSubject]:
    """Return the job that the command and the options describe, and what the planner needs to know of it."""
    from zenith_calibration.probe.probe_job import ProbeJob
    from zenith_tune.describe.cluster_catalog import LOCAL, load_cluster
    from zenith_tune.presets.megatron.job import MegatronLmOverrides
    from zenith_tune.registry import construct
    from zenith_tune.shell import ParsedCommand

    named = {"n_gpus": options["gpus"], **{name: options[name] for name in ("gbs", "model", "vocab", "cluster")}}
    given = {name: value for name, value in named.items() if value is not None}
    args: Options = {**pairs(options, "gbs=256"), **given}
    cluster = args.pop("cluster", None)
    if cluster not in (None, LOCAL):  # the GPUs of this machine say nothing of a larger one
        args.setdefault("n_gpus", load_cluster(cluster).num_gpus)
    job = ProbeJob.of(ParsedCommand.from_argv(command).text, construct(MegatronLmOverrides, args, "probe"))
    return job, job.subject(cluster)


def _probed(job: ProbeJob, planner: Planner, layouts: list[Layout], options: Options) -> list[ProbedLayout]:
    from rich.console import Console

    from zenith_calibration.probe.probe_file import probe_lock, probe_object
    from zenith_calibration.probe.probed_layout import ranked
    from zenith_calibration.probe.prober import Prober
    from zenith_calibration.probe.report import ProbeReport
    from zenith_tune.presets.megatron.written import routing_notes
    from zenith_tune.record.folder import DEFAULT_OUTPUT_DIR, StudyFolder
    from zenith_tune.record.storage import expanded
    from zenith_tune.runners.local.runner import LocalRunner
    from zenith_tune.tuning.place import name_of_now

    console = Console(stderr=options["as_json"], highlight=False, markup=False, emoji=False)
    report, runner = ProbeReport(console, gpu=planner.cluster.gpu.name), LocalRunner(owns_process=True)
    root = expanded(options["output_dir"]) if options["output_dir"] else DEFAULT_OUTPUT_DIR
    place = StudyFolder(root, name_of_now(root, "probe"))
    place.create()
    folder = place.path
    prober = Prober(
        planner=planner,
        runner=runner,
        folder=folder,
        job=job,
        num_steps=options["steps"],
        timeout_s=options["timeout"],
        notify=lambda line: report.say(f"running {line}", style="dim"),
    )
    for note in routing_notes(job.job):
        report.say(f"note: {note}")
    lock = probe_lock(folder)
    try:
        lock.acquire()
        probed = _one_by_one(prober, layouts, report)
    finally:
        runner.close()
        lock.release()
    report.summary(probed, folder)
    if options["as_json"]:
        names = [each.planned.name for each in ranked(probed)]
        echo_json({**probe_object(planner, probed), "ranked": names})
    return probed


def _one_by_one(prober: Prober, layouts: list[Layout], report: ProbeReport) -> list[ProbedLayout]:
    """Probe the layouts, once nothing is left of a probe that was killed; each is shown and kept when it is done."""
    from zenith_calibration.probe.probe_file import end_leftovers, probe_object, write_probe
    from zenith_tune.shell.secrets import find_secrets
    from zenith_tune.tuning.interruption import Interruption

    runner, probed = prober.runner, []
    try:
        with Interruption(runner.interrupt, lambda: runner.num_running > 0) as interruption:
            for left in end_leftovers(prober.folder.parent, runner, find_secrets(prober.job.command)):
                report.say(f"{left.name} was cut off: what it left running is ended, and its logs are masked")
            for number, layout in enumerate(layouts, start=1):
                interruption.check()
                found = prober.probe(layout, number)
                if not found.ok:
                    interruption.check()  # a rank that was ended from outside says nothing of its layout
                probed.append(found)
                write_probe(prober.folder, probe_object(prober.planner, probed))
                report.layout(found)
            interruption.check()
    except StudyInterrupted:
        report.say(f"interrupted: {len(probed)} of {len(layouts)} layouts are probed, in {prober.folder}")
        raise
    return probed
