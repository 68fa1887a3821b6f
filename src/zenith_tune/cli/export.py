"""The command `zenithtune export`: a study for another machine, MLflow, Weights & Biases, or TensorBoard."""

from __future__ import annotations

from typing import Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import debug_option, path_option, refuse_file, study_place
from zenith_tune.errors import UsageError
from zenith_tune.units import MIB


@click.command(short_help="Write a study into one file, to MLflow or Weights & Biases, or for TensorBoard.")
@path_option("--bundle", help="One file with the study, its logs and its calibration, for zenithtune import.")
@click.option("--mlflow", metavar="URI", help="MLflow's store, such as sqlite:///mlflow.db or http://host:5000.")
@path_option("--tensorboard", metavar="DIR", help="Where TensorBoard looks; the study gets a folder in it.")
@click.option("--wandb", metavar="PROJECT", help="A project of Weights & Biases; WANDB_MODE=offline writes it here.")
@study_place
@debug_option
@click.argument("study", metavar="[STUDY]", required=False, shell_complete=completion.studies)
def export(study: str | None, **options: Any) -> int:
    """Write the trials of a study that have ended: parameters, measurements, outcome, cause and command.

    STUDY is its name, its folder, or its study.json; without it, the one begun last. Called again, it adds what is new.
    Secrets are masked.

    \b
    zenithtune export first --bundle first.study.gz
    zenithtune export first --mlflow sqlite:///mlflow.db
    zenithtune export first --tensorboard runs
    """
    bundle, uri, folder, project = (options[name] for name in ("bundle", "mlflow", "tensorboard", "wandb"))
    if bundle is None and uri is None and folder is None and project is None:
        hint = "give --bundle FILE, --mlflow URI, --tensorboard DIR or --wandb PROJECT"
        raise UsageError("a study is exported to somewhere", hint=hint)
    refuse_file(bundle, "--bundle")
    from zenith_tune.record.source import find_study

    view = find_study(study, db=options["db"], output_dir=options["output_dir"]).view()
    if bundle is not None:
        from zenith_tune.doctor.installation import installed_versions
        from zenith_tune.record.bundle import write_bundle

        try:
            write_bundle(view, bundle, installed_versions())
        except OSError as error:
            problem = f"--bundle {str(bundle)!r} cannot be written ({error.strerror})"
            raise UsageError(problem, hint="give another path") from error
        size = bundle.stat().st_size
        click.echo(f"{bundle}: {view.study.what_ran}, {size / MIB:.2f} MiB; zenithtune import {bundle}")
    if uri is not None:
        from zenith_tune.exports import export_to_mlflow

        num_new, num_known = export_to_mlflow(view, uri)
        click.echo(f"experiment {view.name}: {num_new} runs written, {num_known} were there")
    if folder is not None:
        from zenith_tune.exports import export_to_tensorboard

        target, num_trials = export_to_tensorboard(view, folder)
        click.echo(f"{target}: {num_trials} trials written; tensorboard --logdir {folder}")
    if project is not None:
        from zenith_tune.exports import export_to_wandb

        click.echo(f"project {project}: {export_to_wandb(view, project)} trials written, in group {view.name}")
    return 0
