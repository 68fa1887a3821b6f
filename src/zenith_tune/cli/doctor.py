"""The command `zenithtune doctor`: what limits a run, and what to change, by the numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import RISK

if TYPE_CHECKING:
    from zenith_tune.describe.topology import Topology
    from zenith_tune.doctor.diagnosed_run import DiagnosedRun, RunHints
    from zenith_tune.doctor.diagnosis import Diagnosis

Options = dict[str, Any]
COMMAND = "zenith_tune.cli.doctor"
"""Where a context keeps the training command."""


class _BeforeCommand(click.Command):
    """Keep what stands behind -- apart, so that a log and a training command are not taken for one another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = args, []
        if "--" in args:
            place = args.index("--")
            own, command = args[:place], args[place + 1 :]
        ctx.meta[COMMAND] = tuple(command)
        return super().parse_args(ctx, own)


@click.command(cls=_BeforeCommand, short_help="Say what limits a run, what to change, and what that would bring.")
@click.option(
    "--cluster", metavar="NAME|PATH", help="Where it runs, e.g. h100x64. [default: the study's; this machine]"
)
@click.option("--topology", type=click.Path(path_type=Path), metavar="FILE",
              help="What `nvidia-smi topo -m` prints on a node.")  # fmt: skip
@click.option("--preset", metavar="NAME", help="What reads the command. [default: the study's, or by the command]")
@click.option("--args", "args", metavar="K=V,...", multiple=True,
              help="What the command does not tell: n_gpus=64,gbs=512,model=llama3-70b,vocab=128256.")  # fmt: skip
@click.option("--risk", type=click.FloatRange(0, 1, min_open=True), default=RISK, show_default=True, metavar="P",
              help="Propose nothing that runs out of memory with this probability or more.")  # fmt: skip
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Coefficients fitted to measured runs. [default: built in]")  # fmt: skip
@click.option("--output-dir", type=click.Path(path_type=Path), help="Where studies are kept. [default: zenithtune-out]")
@click.option("--db", metavar="PATH|URL", help="The study's database. [default: OUTPUT_DIR/studies.db]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.argument("target", required=False, type=click.Path(path_type=Path), metavar="[STUDY|LOG] [-- COMMAND...]")
@click.pass_context
def doctor(context: click.Context, /, target: Path | None, **options: Any) -> int:
    """Name what slows a run down, with its number, and the change that helps, with the gain that the planner predicts.

    STUDY is a study's name, its folder, or its study.json, LOG what a run printed; Megatron-LM's log tells its job
    itself, other logs need the COMMAND too. A command alone is diagnosed on paper.

    \b
    zenithtune doctor megatron-lm-20260801-120000
    zenithtune doctor train.log --cluster h100x64
    zenithtune doctor --cluster h100x64 -- bash train.sh
    """
    if math.isnan(options["risk"]):
        raise UsageError("--risk must be a probability above 0 and up to 1, but got nan", hint="give another")
    command = context.meta[COMMAND]
    if target is None and not command:
        raise UsageError(
            "the doctor needs a run", hint="give a study's name or folder, a log, or your command after --"
        )
    topology = _topology(options)
    diagnosis, run = _diagnosis(target, command, topology, options)
    _show(diagnosis, run, topology, options)
    can_run = diagnosis.case.runs or diagnosis.way_out or any(remedy.fits for remedy in diagnosis.remedies)
    return 0 if can_run else 1


def _topology(options: Options) -> Topology | None:
    if options["topology"] is None:
        return None
    from zenith_tune.describe.tensor_island import read_topology

    return read_topology(options["topology"])


def _diagnosis(
    target: Path | None, command: tuple[str, ...], topology: Topology | None, options: Options
) -> tuple[Diagnosis, DiagnosedRun]:
    run = _run(target, command, options)
    if topology is not None:
        from zenith_tune.describe.tensor_island import with_topology

        cluster = with_topology(run.subject.cluster, topology, options["topology"].name)
        run = replace(run, subject=replace(run.subject, cluster=cluster))
    from zenith_tune.calibrate.calibration_file import load_calibration
    from zenith_tune.doctor.diagnosis import diagnose
    from zenith_tune.doctor.diagnosis_input import DiagnosisInput
    from zenith_tune.planner.planner import Planner

    known = load_calibration(options["calibration"]) if options["calibration"] else None
    planner = Planner(run.subject.model, run.subject.cluster, run.subject.job, known)
    case = DiagnosisInput.of(
        planner,
        run.layout,
        measured=run.measured,
        risk=options["risk"],
        recompute_modules=run.recompute_modules,
        origin=run.origin,
    )
    return diagnose(case), run


def _hints(options: Options) -> RunHints:
    from zenith_tune.doctor.diagnosed_run import RunHints
    from zenith_tune.registry import parse_pairs

    args = parse_pairs(",".join(options["args"]), "--args") if options["args"] else {}
    return RunHints(preset=options["preset"], args=args, cluster=options["cluster"])


def _run(target: Path | None, command: tuple[str, ...], options: Options) -> DiagnosedRun:
    from zenith_tune.shell import ParsedCommand

    hints = _hints(options)
    text = ParsedCommand.from_argv(command).text if command else None
    if target is None:
        from zenith_tune.doctor.diagnosed_run import from_command

        assert text is not None
        return from_command(text, hints)
    if target.is_dir() or target.name == "study.json":
        from zenith_tune.doctor.studied_run import from_study

        if text is not None:
            raise UsageError("a study knows the command that it tuned", hint="leave -- COMMAND out")
        return from_study(target if target.is_dir() else target.parent, hints)
    if text is None and not target.exists() and (run := _of_named_study(target, hints, options)) is not None:
        return run
    from zenith_tune.doctor.logged_run import from_log

    return from_log(target, text, hints)


def _of_named_study(target: Path, hints: RunHints, options: Options) -> DiagnosedRun | None:
    """Return the run of the study of this name; None where there is none and it looks like a file's name."""
    from zenith_tune.doctor.studied_run import from_named_study
    from zenith_tune.errors import StudyError, UnknownNameError

    try:
        return from_named_study(str(target), hints, db=options["db"], output_dir=options["output_dir"])
    except (StudyError, UnknownNameError):
        if target.suffix or len(target.parts) > 1:
            return None
        raise


def _show(diagnosis: Diagnosis, run: DiagnosedRun, topology: Topology | None, options: Options) -> None:
    from zenith_tune.report.doctor import DoctorReport, diagnosis_object

    reason = None
    if topology is not None:
        from zenith_tune.describe.tensor_island import tensor_reason

        reason = tensor_reason(run.subject.cluster, topology)
    if options["as_json"]:
        shown = {"run": run.what, **diagnosis_object(diagnosis)}
        click.echo(json.dumps({**shown, **({"tensor_parallel_reason": reason} if reason else {})}, allow_nan=False))
        return
    report = DoctorReport()
    if reason:
        report.say(f"note: {reason}")
    report.diagnosis(diagnosis, run.what)
