"""The commands `recommend` and `watch`, which import the rest late: `zenithtune --help` reads this file."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click

from zenith_tune.cli.options import COUNT, PathType, debug_option, json_option, pairs, path_option, risk_option

_MOST_GPUS = 4096


@click.command(
    name="recommend", short_help="Say which nodes, memory and options a training job's manifest should have."
)
@click.option("-f", "--filename", type=PathType(), required=True, metavar="FILE", help="A TrainJob or a Job, as YAML.")
@click.option("--gpu", metavar="NAME", help="Its GPUs, e.g. h100. [default: by the selector nvidia.com/gpu.product]")
@click.option("--gpus", type=click.IntRange(1, _MOST_GPUS), metavar="N",
              help="How many. [default: the manifest's, or more where it does not fit on them]")  # fmt: skip
@click.option("--preset", metavar="NAME", help="What reads the command. [default: by the command]")
@click.option("--args", metavar="K=V,...", multiple=True, help="What the command does not say: model=llama3-8b.")
@click.option("--container", metavar="NAME", help="The container of a Job that trains. [default: the first]")
@click.option("--output", type=click.Choice(("patch", "manifest")), default="patch", show_default=True,
              help="What to print: a patch, or the manifest with it.")  # fmt: skip
@risk_option("Recommend nothing that runs out of memory with this probability or more.")
@json_option
@debug_option
def recommend(filename: Path, container: str | None, output: str, as_json: bool, **options: Any) -> int:
    """Plan the job of a manifest, whose model is read from its command, and print a patch with what it should ask for.

    Nothing is run or sent. Nodes and GPUs are the manifest's own, or the fewest that the job fits on; host memory is at
    least that of its processes and of a copy of their states.

    \b
    zenithtune recommend -f trainjob.yaml --gpu h100 > patch.yaml
    kubectl patch --local -f trainjob.yaml --type merge --patch-file patch.yaml -o yaml | kubectl apply -f -
    zenithtune recommend -f trainjob.yaml --gpu h100 --output manifest | kubectl apply -f -
    """
    from zenith_kubernetes.manifest import JobManifest, as_yaml
    from zenith_kubernetes.recommend import recommended

    manifest = JobManifest.read(filename, container)
    found = recommended(
        manifest,
        gpu=options["gpu"],
        gpus=options["gpus"],
        risk=options["risk"],
        preset=options["preset"],
        tune_args=pairs({"args": options["args"]}),
    )
    if as_json:
        click.echo(json.dumps(found.as_json()))
        return 0
    click.echo(str(found), err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(as_yaml(found.patch) if output == "patch" else found.after.as_yaml(), nl=False)
    if output == "patch":
        patched = f"kubectl patch --local -f {filename} --type {found.patch_type} --patch-file PATCH -o yaml"
        click.echo(f"apply it by: {patched} | kubectl apply -f -", err=True)
    return 0


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
