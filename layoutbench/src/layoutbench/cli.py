"""The command line: `layoutbench run`, `predict`, `leaderboard`, `build`, `check`, `list` and `export`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from layoutbench.build import build
from layoutbench.export import export_csv, export_syne_tune
from layoutbench.landscape import SHIPPED, Landscape, LandscapeError, load_landscapes
from layoutbench.leaderboard import html_page, markdown, merged, read_result, result_of, write_result
from layoutbench.predict import ask, predictions_of, read_rows
from layoutbench.runner import MOST_TRIALS, TunerError, label, load_tuner, run_all
from layoutbench.tuners import BUILT_IN


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; what is wrong with its input is one line, and exit code 2."""
    options = _parser().parse_args(argv)
    try:
        options.command(options)
    except (LandscapeError, TunerError) as error:
        print(f"layoutbench: {error}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="layoutbench", description="Judge tuners of training layouts.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run tuners on landscapes and write their scores as JSON")
    run.add_argument(
        "--tuner",
        action="append",
        required=True,
        help=f"module:Class, NAME=module:Class, or {', '.join(BUILT_IN)}; several times if wanted",
    )
    _add_landscapes(run)
    run.add_argument("--train", type=Path, action="append", help="what tuners may learn from (default: the others)")
    run.add_argument("--seeds", type=_count, default=5, help="of tuners and of the noise: 0, 1, ... (default: 5)")
    run.add_argument("--trials", type=_count, default=MOST_TRIALS, help=f"at most so many (default: {MOST_TRIALS})")
    run.add_argument("--jobs", type=_count, default=1, help="processes side by side (default: 1)")
    run.add_argument("--sealed", action="store_true", help="write scores alone, and nothing of the landscapes")
    run.add_argument("--output", type=Path, help="a JSON file (default: print the scores)")
    run.set_defaults(command=_run)

    said = commands.add_parser("predict", help="score what planners predict of measured rows, without running them")
    said.add_argument(
        "--planner",
        action="append",
        required=True,
        metavar="NAME=COMMAND",
        help="reads rows as JSON and writes its answers; several times if wanted",
    )
    said.add_argument("--rows", type=Path, action="append", required=True, help="file or folder of measured rows")
    said.add_argument("--sealed", action="store_true", help="write scores alone, and nothing of the rows")
    said.add_argument("--output", type=Path, help="a JSON file (default: print the scores)")
    said.set_defaults(command=_predict)

    board = commands.add_parser("leaderboard", help="write results as markdown, HTML with plots, and JSON")
    board.add_argument("results", type=Path, nargs="+", help="what `run` wrote; several are merged")
    board.add_argument("--output", type=Path, required=True, help="a name without its suffix: NAME.md, .html, .json")
    board.set_defaults(command=_leaderboard)

    made = commands.add_parser("build", help="build landscapes from tables of measured runs")
    data = os.environ.get("ZENITHTUNE_DATA")
    made.add_argument(
        "--data", type=Path, default=data, required=not data, help="CSV file or folder (default: ZENITHTUNE_DATA)"
    )
    made.add_argument("--output", type=Path, required=True, help="a folder outside of the package")
    made.set_defaults(command=_build)

    shown = commands.add_parser("list", help="list landscapes")
    _add_landscapes(shown)
    shown.set_defaults(command=_list)

    checked = commands.add_parser("check", help="check files of landscapes against the schema")
    checked.add_argument("landscapes", type=Path, nargs="+", help="files or folders")
    checked.set_defaults(command=_check)

    export = commands.add_parser("export", help="write landscapes for other tools")
    _add_landscapes(export)
    export.add_argument("--format", choices=("csv", "syne-tune"), required=True)
    export.add_argument("--output", type=Path, required=True, help="a file for csv, a folder for syne-tune")
    export.set_defaults(command=_export)
    return parser


def _add_landscapes(parser: argparse.ArgumentParser) -> None:
    text = "file or folder, several times if wanted (default: those that come with the package)"
    parser.add_argument("--landscapes", type=Path, action="append", help=text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, but got {text!r}")
    return int(text)


def _landscapes(options: argparse.Namespace) -> list[Landscape]:
    return load_landscapes(options.landscapes or [SHIPPED])


def _run(options: argparse.Namespace) -> None:
    landscapes = _landscapes(options)
    # Sealed landscapes are no training data either: a tuner that saw them could give them away.
    train = load_landscapes(options.train or [SHIPPED]) if options.train or options.sealed else None
    factories = {label(name): load_tuner(name) for name in options.tuner}
    settings = {name: text for name, factory in factories.items() if (text := getattr(factory, "settings", ""))}
    records = run_all(
        options.tuner,
        landscapes,
        seeds=options.seeds,
        most_trials=options.trials,
        train=train,
        jobs=options.jobs,
        sealed=options.sealed,
        said=lambda line: print(line, file=sys.stderr, flush=True),
    )
    result = result_of(
        records,
        landscapes,
        seeds=options.seeds,
        most_trials=options.trials,
        settings=settings,
        sealed=options.sealed,
    )
    if options.output is not None:
        write_result(result, options.output)
    else:
        print(json.dumps(result["scores"], indent=1))


def _predict(options: argparse.Namespace) -> None:
    rows = read_rows(options.rows)
    answers = {label(planner): ask(planner.partition("=")[2], rows) for planner in options.planner}
    text = json.dumps(predictions_of(rows, answers, sealed=options.sealed), indent=1)
    if options.output is not None:
        options.output.write_text(f"{text}\n", encoding="utf-8")
    else:
        print(text)


def _leaderboard(options: argparse.Namespace) -> None:
    result = merged([read_result(path) for path in options.results])
    name = options.output.name  # a date in it may hold what looks like a suffix
    options.output.with_name(f"{name}.md").write_text(markdown(result), encoding="utf-8")
    options.output.with_name(f"{name}.html").write_text(html_page(result), encoding="utf-8")
    # What every single trial came to would give measurements away that may not be passed on.
    scores = {key: value for key, value in result.items() if key != "records"}
    write_result(scores, options.output.with_name(f"{name}.json"))
    print(f"wrote {options.output}.md, .html and .json")


def _build(options: argparse.Namespace) -> None:
    paths = build(options.data, options.output)
    print(f"wrote {len(paths)} landscapes to {options.output}")


def _list(options: argparse.Namespace) -> None:
    for item in _landscapes(options):
        ran = sum(math.isfinite(layout.step_s) for layout in item.layouts)
        print(f"{item.name}: {len(item.layouts)} layouts, {ran} ran, best {item.best_s:.3f} s; {', '.join(item.axes)}")


def _check(options: argparse.Namespace) -> None:
    print(f"{len(load_landscapes(options.landscapes))} landscapes follow the schema")


def _export(options: argparse.Namespace) -> None:
    write = export_csv if options.format == "csv" else export_syne_tune
    write(_landscapes(options), options.output)
    print(f"wrote {options.output}")
