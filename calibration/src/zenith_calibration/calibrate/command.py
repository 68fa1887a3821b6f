"""The command `zenithtune calibrate`: coefficients of the planner from measured runs, or from a study's trials."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import COUNT, PRECISIONS, Options, debug_option, echo_json, json_option, path_option
from zenith_tune.errors import UsageError

if TYPE_CHECKING:
    from zenith_calibration.calibrate.calibration_fit import CalibrationFit
    from zenith_tune.calibrate.measured_run import MeasuredRun

OF_A_STUDY = ("model", "cluster", "seq")
MAX_BYTES = 4 * 2**20
"""No calibration is larger; what is so is not read to see."""


@click.command(short_help="Fit the planner's coefficients to measured runs, or to the trials of a study.")
@path_option("--rows", multiple=True, metavar="PATH",
             help="Measured runs: a CSV file, or a folder of them. May be given several times.")  # fmt: skip
@path_option("--study", metavar="FOLDER", help="A finished study, with study.json.")
@path_option("--probes", multiple=True, metavar="FOLDER",
             help="What `zenithtune probe` wrote. May be given several times, and together with --rows.")  # fmt: skip
@click.option("--model", metavar="NAME|PATH", shell_complete=completion.models,
              help="--study: the model that was trained.")  # fmt: skip
@click.option("--cluster", metavar="NAME|PATH", shell_complete=completion.clusters,
              help="--study: the GPUs that it ran on, e.g. h100x64.")  # fmt: skip
@click.option("--seq", type=COUNT, metavar="N", help="--study: sequence length, in tokens.")
@click.option("--gbs", type=COUNT, metavar="N", help="--study: global batch. [default: the study's]")
@click.option("--precision", type=click.Choice(PRECISIONS), help="--study: of matrix work. [default: bf16]")
@click.option("--framework", metavar="NAME", help="What ran. [default: what most of the rows are of; megatron]")
@path_option("--output", required=True, help="The file to write.")
@click.option("--all", "fit_all", is_flag=True, help="--rows: write one file per framework into the folder --output.")
@json_option
@debug_option
def calibrate(**options: Any) -> int:
    """Fit the coefficients of the planner's estimates to what was measured, and write them to a file.

    What your runs leave open stays as in the calibration that comes with the package. The error is that on runs which
    the coefficients were not fitted to.

    \b
    zenithtune calibrate --rows runs.csv --output mine.json
    zenithtune calibrate --probes zenithtune-out/PROBE --output mine.json
    zenithtune calibrate --study zenithtune-out/STUDY --model llama3-8b --cluster h100x8 --seq 8192 --output mine.json
    zenithtune plan --model llama3-8b --cluster h100x8 --gbs 64 --seq 8192 --calibration mine.json
    """
    _refuse_contradictions(options)
    output: Path = options["output"]
    _refuse_output(output, is_folder=options["fit_all"])
    objects = []
    for fit in _fits(options):
        from zenith_calibration.calibrate.report import calibration_lines, calibration_object
        from zenith_tune.calibrate.calibration_file import save_calibration

        path = output / f"{fit.calibration.framework}.json" if options["fit_all"] else output
        try:
            save_calibration(fit.calibration, path)
        except OSError as error:
            problem = f"--output {path} cannot be written ({error.strerror})"
            raise UsageError(problem, hint="give another path") from None
        objects.append(calibration_object(fit, str(path)))
        if not options["as_json"]:
            click.echo("\n".join(calibration_lines(fit, path)))
    if options["as_json"]:
        echo_json({"calibrations": objects} if options["fit_all"] else objects[0])
    return 0


def _refuse_contradictions(options: Options) -> None:
    if bool(options["rows"] or options["probes"]) == (options["study"] is not None):
        problem = "a calibration is fitted to --rows PATH, --probes FOLDER or --study FOLDER"
        raise UsageError(problem, hint="give one of them")
    if options["fit_all"] and (options["framework"] or not options["rows"]):
        raise UsageError("--all fits every framework of --rows", hint="leave --framework and --study out")
    given = [name for name in (*OF_A_STUDY, "gbs", "precision") if options[name] is not None]
    if options["study"] is None and given:
        raise UsageError(f"--{given[0]} says what a study does not, and rows say themselves", hint="leave it out")
    missing = [f"--{name}" for name in OF_A_STUDY if options[name] is None]
    if options["study"] is not None and missing:
        raise UsageError("--study needs to know what was run", hint=f"give {', '.join(missing)} too")


def _is_calibration(path: Path) -> bool:
    """Tell whether a file may be replaced: rows, devices and all else that was put there for another end may not."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return not text.strip() or ('"framework"' in text and '"coefficients"' in text)


def _refuse_output(path: Path, *, is_folder: bool) -> None:
    """Refuse what cannot be written before minutes are spent on a fit."""
    place = path if is_folder else path.parent
    try:
        if not place.is_dir():
            problem = f"--output {path} cannot be written: {place} is no folder"
            raise UsageError(problem, hint="make it, or give another one")
        if not is_folder and path.is_dir():
            problem = f"--output must be a file, but {path} is a folder"
            raise UsageError(problem, hint=f"give a file in it, {path}/mine.json")
        if not is_folder and path.exists() and not _is_calibration(path):
            problem = f"--output must be a new file or an earlier calibration, but {path} is something else"
            raise UsageError(problem, hint="give another file")
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"--output {str(path)!r} cannot be written ({error})", hint="give another path") from None


def _fits(options: Options) -> Iterator[CalibrationFit]:
    framework, runs = _runs(options)
    from zenith_calibration.calibrate.calibration_fit import fit_calibration
    from zenith_calibration.calibrate.framework_fits import calibrate_all, most_measured, sources_of
    from zenith_tune.calibrate.calibration_file import default_calibration

    today = datetime.now(UTC).date().isoformat()
    if options["fit_all"]:
        yield from calibrate_all(runs, date=today)
        return
    framework = framework or most_measured(runs)
    start, origin = default_calibration(framework), sources_of(runs, framework)
    yield fit_calibration(runs, framework=framework, origin=origin, date=today, start=start)


def _runs(options: Options) -> tuple[str | None, list[MeasuredRun]]:
    """Return the framework, where it is given, and the runs."""
    from zenith_tune.describe.framework_spec import load_framework

    framework = load_framework(options["framework"]).name if options["framework"] else None
    if options["study"] is None:
        from zenith_calibration.calibrate.measured_rows import read_measured
        from zenith_calibration.calibrate.probed_runs import read_probes

        rows = [run for place in options["rows"] for run in read_measured(place)]
        probes = [run for place in options["probes"] for run in read_probes(place)]
        if not rows and not probes and options["probes"]:
            places = ", ".join(map(str, options["probes"]))
            problem = f"a calibration needs ranks that trained, but no rank of {places} trained"
            raise UsageError(problem, hint="give other probes")
        return framework, rows + probes
    from zenith_calibration.calibrate.study_runs import StudiedJob, read_study
    from zenith_tune.describe.cluster_catalog import load_cluster
    from zenith_tune.describe.model_catalog import load_model

    job = StudiedJob(
        model=load_model(options["model"]),
        cluster=load_cluster(options["cluster"]),
        seq_len=options["seq"],
        global_batch=options["gbs"],
        framework=framework or "megatron",
        precision=options["precision"] or "bf16",
    )
    return job.framework, read_study(options["study"], job)
