"""The command `zenithtune watch`: tunes annotated jobs of a namespace before they run."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from zenith_tune.cli.options import COUNT, debug_option, path_option


@click.command(short_help="Tune annotated jobs of a Kubernetes namespace before they run.")
@click.option("--namespace", metavar="NAME", help="The namespace. [default: the kubeconfig's]")
@click.option("--at-most", type=COUNT, default=1, show_default=True, metavar="N", help="Jobs that are tuned at a time.")
@click.option("--cluster", metavar="NAME", help="The GPUs of jobs that do not say it, e.g. h100x16.")
@path_option("--kubeconfig", help="The kubeconfig. [default: kubectl's, or the pod's service account]")
@click.option("--context", metavar="NAME", help="The context in it.")
@path_option(
    "--output-dir", metavar="DIR", default=Path("zenithtune-out"), show_default=True, help="Where the studies are kept."
)
@debug_option
def watch(
    namespace: str | None,
    at_most: int,
    cluster: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output_dir: Path,
    debug: bool,
) -> int:
    """Hold jobs with the annotation zenithtune/optimize, tune them, and release them with the better command.

    \b
    metadata:
      annotations:
        zenithtune/optimize: "preset=megatron-lm,gpu-hours=2"
    """  # fmt: skip
    from zenith_kubernetes.api import Cluster
    from zenith_kubernetes.watch import JobWatch

    file = str(kubeconfig.absolute()) if kubeconfig else None
    given = {name: text for name, text in (("kubeconfig", file), ("context", context)) if text is not None}
    watched = JobWatch(
        Cluster(namespace=namespace, kubeconfig=file, context=context),
        output_dir=output_dir,
        at_most=at_most,
        runner_args=given,
        options=(f"--cluster={cluster}",) if cluster else (),
        say=lambda line: click.echo(f"zenithtune: {line}", err=True),
    )
    signal.signal(signal.SIGTERM, lambda *_: watched.stop())
    signal.signal(signal.SIGINT, lambda *_: watched.stop())
    click.echo(
        f"zenithtune: watching jobs with the annotation zenithtune/optimize, at most {at_most} at a time", err=True
    )
    watched.run()
    return 0
