"""The command `zenithtune guide`: typical parallelism for a model size, next to what the planner would choose."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import (
    BATCH,
    SEQUENCE,
    GroupedCommand,
    Options,
    cost_of,
    cost_options,
    debug_option,
    echo_json,
    grouped_option,
    help_all_option,
    json_option,
    linked,
    refuse_costs,
    topology_option,
)
from zenith_tune.errors import UsageError
from zenith_tune.planner.size_guide import GPU, SEQ_LEN, TABLE
from zenith_tune.tuning.options import JOB

if TYPE_CHECKING:
    from zenith_tune.planner.size_guide import GuideComparison

MAX_GPUS = 1_000_000
RUN_BY = "accelerate"
"""What the guide's layouts are for: the planner's choice must be one that its file can say."""


@click.command(
    cls=GroupedCommand, short_help="Show typical parallelism for a model size, and what the planner would choose."
)
@grouped_option("--model", metavar="NAME|PATH", group=JOB, shell_complete=completion.models,
                help="A model of the catalog, or its config.json.")  # fmt: skip
@grouped_option("--cluster", "--gpu", default=GPU, show_default=True, metavar="NAME|PATH", group=JOB,
                shell_complete=completion.clusters,
                help="GPUs, e.g. h100x64; a file; or a kind of them alone.")  # fmt: skip
@grouped_option("--gpus", type=click.IntRange(1, MAX_GPUS), metavar="N", group=JOB,
                help="How many. [default: the table's]")  # fmt: skip
@grouped_option("--gbs", type=BATCH, metavar="N", group=JOB, help="Global batch. [default: the table's]")
@grouped_option("--seq", type=SEQUENCE, default=SEQ_LEN, show_default=True, metavar="N", group=JOB,
                help="Sequence length.")  # fmt: skip
@topology_option(": TP stays where NVLink joins its GPUs")
@cost_options
@json_option
@debug_option
@help_all_option
@click.argument("size", required=False)
def guide(size: str | None, **options: Any) -> int:
    """Show typical parallelism for a model like Llama of SIZE, e.g. 70B, and what the planner would choose.

    Without SIZE and --model the whole table is shown: the starting points for bf16, 2K sequences and A100 80 GB.

    \b
    zenithtune guide 70B --gpus 64
    zenithtune guide 30B --cluster h100x64 --seq 8192 --gbs 256 --tokens 1T
    """
    if size is not None and options["model"] is not None:
        raise UsageError("SIZE and --model are both the model", hint="leave one of them out")
    refuse_costs(options)
    found = None if size is options["model"] is None else _comparison(size, options)
    from zenith_tune.report.guide import comparison_lines, comparison_object, table_lines

    if found is None:
        lines, shown = table_lines(TABLE), {"table": [asdict(row) for row in TABLE]}
    else:
        cost = cost_of(found.best, found.plan.cluster.gpu.name, options)
        lines, shown = comparison_lines(found, cost), comparison_object(found, cost)
    if options["as_json"]:
        echo_json(shown)
    else:
        click.echo("\n".join(lines))
    return 0 if found is None or found.best is not None else 1


def _comparison(size: str | None, options: Options) -> GuideComparison:
    """Estimate the guide's layout, and plan the same job."""
    from zenith_tune.describe.cluster_catalog import load_cluster
    from zenith_tune.describe.framework_spec import load_framework
    from zenith_tune.describe.gpu_catalog import find_gpu, has_bf16
    from zenith_tune.describe.job_spec import JobSpec
    from zenith_tune.describe.model_catalog import load_model
    from zenith_tune.planner.size_guide import (
        GuideComparison,
        guide_row,
        is_outside,
        parse_size,
        size_guide,
        sized_model,
    )

    if size is not None:
        billions = parse_size(size)
        model = sized_model(billions)
    else:
        model = load_model(options["model"])
        billions = round(model.num_params / 1e9, 1)
    usual = guide_row(billions).num_gpus if find_gpu(options["cluster"]) else None
    cluster = linked(load_cluster(options["cluster"], options["gpus"] or usual), options)
    found = size_guide(billions, num_gpus=cluster.num_gpus, island=cluster.fast_domain, global_batch=options["gbs"])
    precision = "bf16"
    if not has_bf16(cluster.gpu.name):
        precision = "fp16"
        found = replace(found, rules=(f"{cluster.gpu.name} has no bf16: fp16, with a scaled loss", *found.rules))
    job = JobSpec(seq_len=options["seq"], framework=load_framework("megatron"), precision=precision)
    # Not before: a mistake is reported without the planner.
    from zenith_tune.layouts.search_space import SearchSpace
    from zenith_tune.planner.planner import Planner
    from zenith_tune.planner.ways_out import ways_out
    from zenith_tune.presets.formats import writable

    gbs = found.layout.global_batch
    planner = Planner(model, cluster, job)
    # Tensor parallelism stays inside what NVLink joins.
    inside = SearchSpace().tensor_within(planner.cluster.fast_domain)
    space = writable(inside, RUN_BY, planner.job.framework.name)
    plan = planner.plan(gbs, top=1, space=space)
    if not plan.best:
        plan = planner.plan(gbs, top=1, space=inside)
        rule = "no layout that Accelerate's file can say fits: the planner's is for Megatron-LM itself"
        found = replace(found, rules=(*found.rules, rule) if plan.best else found.rules)
    if plan.best and is_outside(billions):
        found = found.answered_by(plan.best[0])
    explained = planner.explain(found.layout)
    assert explained.planned is not None, "the guide's sizes multiply to the GPUs"
    return GuideComparison(
        guide=found,
        planned=explained.planned,
        broken=explained.broken,
        verdict=explained.verdict,
        plan=plan,
        ways_out=() if plan.best else ways_out(planner),
        enough_gpus=None if plan.best else planner.least_gpus(gbs, above=cluster.num_gpus, space=inside),
    )
