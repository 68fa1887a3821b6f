"""Runs other planners on the published rows that each can express, and ours, predicted from other sources alone.

    python benchmarks/planners.py --trees TREES
    python benchmarks/planners.py --trees TREES --judge sealed --sealed --json

TREES has a clone of each planner under the name that ADAPTERS has for it, with its own environment in `.venv`; those
that are not there are named and left out. Rows are of any folder of measured runs (docs/calibration.md), by default the
published ones of ZENITHTUNE_DATA; those of another folder are predicted from all of --fit.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from h200_probes import probed, swept
from held_out import hold_out, hold_out_memory, predict
from left_out_sources import leave_sources_out, leave_sources_out_memory
from places import RESULTS
from scoreboard import parse_options, read_both, run_command
from scoreboard_report import table

from layoutbench.predict import (
    MEMORY,
    STEP,
    Answers,
    Prediction,
    Row,
    ask,
    predictions_of,
    scores,
    write_rows,
)
from layoutbench.runner import TunerError
from zenith_calibration.calibrate.framework_fits import families_of
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_calibration.calibrate.memory_fit import MEASURED_ON, layout_columns
from zenith_calibration.calibrate.memory_fit import usable as states_memory
from zenith_tune import __version__
from zenith_tune.calibrate.measured_run import DEFAULT_COLUMNS, MeasuredRun
from zenith_tune.calibrate.time_family import family_of
from zenith_tune.calibrate.time_fit import RunTable, TimeFit, run_cluster, unusable
from zenith_tune.describe.cluster_spec import precision_class
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import MemoryCoefficients

FOLDER = Path(__file__).parent / "planner_adapters"
ADAPTERS = {
    "simumax": "run_simumax.py",
    "calculon": "run_calculon.py",
    "llm-analysis": "run_llm_analysis.py",
    "megatron-lm": "run_megatron_memory.py",
    "primus": "run_primus.py",
}
"""Adapters by the name of the planner's tree."""
NOT_RUN = {
    "vtrain": "needs a profile of every hidden size, tensor parallelism and micro-batch on the GPU itself, by an "
    "extension of its own; none comes with it",
}
"""Planners that cannot be run on these rows, and why."""
OURS = "zenithtune"
RECOMPUTE = ("none", "selective", "full", "some layers")


def row_of(run: MeasuredRun) -> Row | None:
    """Return what a planner may know of a run, or None where its source states too little for any."""
    measured: dict[str, float] = {}
    if unusable(run) is None and family_of(run.framework).fitted:
        measured[STEP] = run.step_s or 0.0
    if run.memory_bytes and states_memory(run):
        measured[MEMORY] = run.memory_bytes
    if not measured or run.model is None:
        return None
    return Row(source=run.source, given=_given(run, run.model), measured=measured)


def _given(run: MeasuredRun, model: ModelSpec) -> dict[str, Any]:
    layout = DEFAULT_COLUMNS | layout_columns(replace(run, layout={"mbs": 1} | run.layout))
    cluster = run_cluster(run if run.num_gpus else replace(run, num_gpus=_num_ranks(layout)))
    latent = model.latent_attention
    return {
        "model": {
            "layers": model.num_layers,
            "hidden": model.hidden,
            "ffn_hidden": model.ffn_hidden,
            "heads": model.num_heads,
            "kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "vocab": model.vocab,
            "gated_mlp": model.gated_mlp,
            "norm_bias": model.norm_bias,
            "tied_embeddings": model.tied_embeddings,
            "experts": model.num_experts,
            "top_k": model.top_k,
            "moe_ffn_hidden": model.moe_ffn_hidden,
            "shared_ffn_hidden": model.shared_ffn_hidden,
            "dense_layers": model.num_dense_layers,
            "mtp_layers": model.num_mtp_layers,
            "latent_attention": latent
            and {name: getattr(latent, name) for name in ("q_rank", "kv_rank", "qk_nope_dim", "qk_rope_dim", "v_dim")},
        },
        "job": {
            "framework": run.stated_framework,
            "precision": precision_class(run.precision),
            "seq_len": run.seq_len,
            "global_batch": layout.pop("gbs"),
            "memory_of": MEASURED_ON.get(run.source, "fullest"),
        },
        "cluster": {
            "gpu": cluster.gpu.name,
            "gpu_memory_bytes": cluster.gpu.memory_bytes,
            "num_gpus": cluster.num_gpus,
            "gpus_per_node": cluster.gpus_per_node,
            "link_bytes_per_s": cluster.fast_link.bytes_per_s,
            "network_bytes_per_s": cluster.network.bytes_per_s,
        },
        "layout": layout | {"recompute": RECOMPUTE[layout["recompute"]]},
    }


def _num_ranks(layout: Mapping[str, int | bool]) -> int:
    return layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]


def ours(fit: list[MeasuredRun], judged: list[MeasuredRun] | None, runs: Sequence[MeasuredRun]) -> Answers:
    """Predict `runs`: those of each source from the other sources of `fit`, or `judged` from all of `fit`."""
    if judged is None:
        steps = {
            id(run): float(s)
            for case in leave_sources_out(fit)
            for run, s in zip(case.runs, case.held.step_s, strict=True)
        }
        memory = leave_sources_out_memory(fit)
        how = "each source by a calibration fitted to the other sources alone"
    else:
        steps = {id(item.run): item.predicted_s for _, found in hold_out(fit, judged) for item in found}
        memory = {id(held.run): held.predicted_bytes for held in hold_out_memory(fit, judged)}
        how = "by a calibration fitted to other runs"
    predictions: list[Prediction] = [
        {STEP: steps.get(id(run), "no step"), MEMORY: memory.get(id(run), "no memory")} for run in runs
    ]
    assumed = [how, "all layouts of a framework are estimated at once"]
    return Answers(predictions=predictions, version=__version__, assumed=assumed, cpu_s=estimate_cpu_s(runs))


def estimate_cpu_s(runs: Sequence[MeasuredRun]) -> float:
    """Return the CPU seconds of predicting step and memory of runs, once fitted."""
    start = time.process_time()
    for family, members in families_of(list(runs)):
        framework = load_framework(family.name)
        fit = TimeFit(family, RunTable.of(members, framework), framework)
        fit.estimate(fit.start)
    by_framework = Counter(run.framework for run in runs)
    for name in by_framework:
        stated = [run for run in runs if run.framework == name and states_memory(run)]
        predict(stated, MemoryCoefficients(), name)
    return time.process_time() - start


def others(trees: Path, rows: Sequence[Row]) -> Iterator[tuple[str, Answers | str]]:
    """Yield the answers of each planner that is there, or in a line why there are none."""
    for name, adapter in ADAPTERS.items():
        tree = trees.resolve() / name
        python = tree / ".venv" / "bin" / "python"
        if not python.exists():
            yield name, f"not in {trees}: clone it there, with its environment in {name}/.venv"
            continue
        try:
            yield name, ask(shlex.join(map(str, (python, FOLDER / adapter, tree))), rows)
        except TunerError as error:
            yield name, str(error)


def compared(rows: Sequence[Row], mine: Answers, theirs: Answers) -> Answers:
    """Return the answers of a planner with our scores on the rows that it could express."""
    return replace(theirs, scored=scores(rows, mine.predictions, among=theirs.predictions))


def markdown(result: Mapping[str, Any]) -> str:
    """Return the result as a page: what each planner predicts, by source, and what it cannot."""
    planners = result["planners"]
    parts = [
        "# Planners",
        f"Written by `benchmarks/planners.py` on {result['date']}: what planners predict of {result['num_rows']:,} "
        "published runs without running them, each from its own tree in its own environment. Errors are predicted over "
        "measured, less 1, without the sign, at the median; next to them those of ours on the same rows, each source "
        "of which is predicted by a calibration fitted to other sources alone. Rates are of one CPU core. "
        "`sources` is the median of the sources' medians: two sources make most of the rows.",
        "Mind that no fold leaves out the form of our model, nor what it knows of a framework's memory from its code: "
        "they were chosen with these runs at hand. Calculon's validation is korthikanti2022. SimuMax and Megatron-LM's "
        "report are of Megatron-LM, and are asked of nanotron (ultrascale_playbook) and Megatron-DeepSpeed "
        "(bloom_prequel, vtrain) too.",
        table(HEADS, [cells for name, found in planners.items() for cells in _lines(name, found)]),
        *(f"- {name}: not run: {reason}." for name, reason in result["not_run"].items()),
        "## By source: median error of the step, and ours on the same rows",
        table(("source", *planners), _source_lines(planners, "step")),
        "## By source: median error of the memory, and ours on the same rows",
        table(("source", *planners), _source_lines(planners, "memory")),
        "## What each assumed",
        "\n".join(f"- {name}: {line}." for name, found in planners.items() for line in found["assumed"]),
        "## What each could not express",
        table(("planner", "what", "rows", "reason"), list(_reasons(planners))),
        "## Published runs that were not judged",
        "Too little is stated of them for any planner, or, of mcore_ci_golden, they are times of tests of tiny models.",
        table(("source", "runs"), list(result["not_judged"].items())),
    ]
    return "\n\n".join(parts) + "\n"


HEADS = (
    "planner",
    "version",
    "what",
    "rows",
    "of",
    "error",
    "ours",
    "sources",
    "ours",
    "predicted / measured",
    "layouts per s",
)


def _lines(name: str, found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for what, theirs in found["scores"].items():
        if not theirs["predicted"]:
            continue
        same = found["same_rows"].get(what, {})
        names = ("median_abs_pct", "median_of_sources_pct")
        figures = [_percent(each.get(key)) for key in names for each in (theirs, same)]
        rate = f"{found['layouts_per_cpu_s'] or 0:,.0f}"
        yield (
            name,
            found["version"],
            what,
            str(theirs["predicted"]),
            str(theirs["rows"]),
            *figures,
            f"{theirs['median_ratio']:.2f}",
            rate,
        )


def _source_lines(planners: Mapping[str, Any], what: str) -> Iterator[list[str]]:
    every = next(iter(planners.values()))["scores"][what]["by_source"]
    for source in every:
        cells = []
        for found in planners.values():
            theirs = found["scores"][what]["by_source"].get(source)
            same = found["same_rows"].get(what, {}).get("by_source", {}).get(source)
            against = f" / {_percent(same['median_abs_pct'])}" if same else ""
            cells.append(f"{_percent(theirs['median_abs_pct'])}{against} ({theirs['predicted']})" if theirs else "")
        yield [source, *cells]


def _reasons(planners: Mapping[str, Any]) -> Iterator[tuple[str, str, int, str]]:
    for name, found in planners.items():
        for what, each in found["scores"].items():
            for reason, num in each["why_not"].items():
                yield name, what, num, reason


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}%"


def run(options: argparse.Namespace) -> None:
    """Judge every planner, and write the dated result where the project's own data is judged."""
    fit, judged = read_both(options, read_measured)
    own = judged is None and options.is_own
    known = [*fit, *swept(), *probed()] if own else fit
    published = [run for run in (fit if judged is None else judged) if run.author != "h200" and not run.flags]
    told = [(run, row) for run in published if (row := row_of(run)) is not None]
    runs, rows = [run for run, _ in told], [row for _, row in told]
    if options.rows is not None:
        write_rows(rows, options.rows)
    mine = ours(known, judged, runs)
    answers, not_run = {OURS: mine}, dict(NOT_RUN)
    for name, found in others(options.trees, rows):
        if isinstance(found, str):
            not_run[name] = found
            print(f"planners: {name}: {found}", file=sys.stderr)
        else:
            answers[name] = compared(rows, mine, found)
    result = predictions_of(rows, answers, sealed=options.sealed)
    if options.sealed or options.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    if options.sealed:
        return
    has_figure = [run for run in published if (run.step_s or run.memory_bytes) and not run.out_of_memory]
    kept = {id(run) for run in runs}
    left = Counter(run.source for run in has_figure if id(run) not in kept)
    result |= {"not_run": not_run, "not_judged": dict(left.most_common())}
    text = markdown(result)
    output = options.output or (RESULTS / f"planners-{date.today().isoformat()}.md" if own else None)
    if output is not None:
        output.write_text(text, encoding="utf-8")
        output.with_name(f"{output.name.removesuffix('.md')}.json").write_text(json.dumps(result, indent=1) + "\n")
    if not options.json:
        print(text)


def options_parser() -> argparse.ArgumentParser:
    """Return the options."""
    parser = parse_options(__doc__)
    parser.add_argument("--trees", type=Path, required=True, help="folder with a clone of each planner")
    parser.add_argument(
        "--rows", type=Path, help="also write the rows to this file, as `layoutbench predict` reads them"
    )
    parser.add_argument("--sealed", action="store_true", help="print scores alone, and nothing of the rows")
    return parser


if __name__ == "__main__":
    run_command("planners", run, options_parser().parse_args())
