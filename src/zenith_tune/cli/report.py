"""The command `zenithtune report`: a study as a page, or as Markdown, CSV or JSON; two of them compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import debug_option, path_option, refuse_file, study_place, write_file
from zenith_tune.errors import UsageError
from zenith_tune.study.files import Json

if TYPE_CHECKING:
    from zenith_tune.record.source import StudySource

FORMATS = ("html", "md", "csv", "json")
ALSO = {"htm": "html", "markdown": "md"}
"""Other spellings of the formats."""


@click.command(short_help="Show a study as one HTML page, or as Markdown, CSV or JSON; compare two.")
@click.option("--format", "form", type=click.Choice((*FORMATS, "markdown")),
              help="[default: by the ending of --output, else html]")  # fmt: skip
@path_option("--output", help="Where to write. [default: report.html in the study's folder; other formats: stdout]")
@click.option("--compare", metavar="STUDY", shell_complete=completion.studies, help="Another study to compare with.")
@click.option("--diff", is_flag=True, help="Print what the best command has in place of your own, and nothing else.")
@study_place
@debug_option
@click.argument("study", metavar="[STUDY]", required=False, shell_complete=completion.studies)
def report(study: str | None, **options: Any) -> int:
    """Write what a study found: the best command, how it came about, what failed, and every trial.

    STUDY is its name, its folder, or its study.json; also one that another process is tuning. Without STUDY it is the
    one begun last. The page is one file that needs no network.

    \b
    zenithtune report
    zenithtune report zenithtune-out/first --format md
    zenithtune report first --compare second --output both.html
    """
    ending = options["output"].suffix.lstrip(".").lower() if options["output"] is not None else ""
    form = options["form"] or (ending if ending in (*FORMATS, *ALSO) else "html")
    form = ALSO.get(form, form)
    if form == "csv" and options["compare"] is not None:
        raise UsageError("--compare has no table of trials for csv", hint="give --format html, md or json")
    refuse_file(options["output"], "--output")
    from zenith_tune.record.source import find_study

    place = {"db": options["db"], "output_dir": options["output_dir"]}
    others = [] if options["compare"] is None else [options["compare"]]
    sources = [find_study(name, **place) for name in (study, *others)]
    output = options["output"] or (_default_output(sources) if form == "html" else None)
    from zenith_tune.report.study_comparison import compared

    digests = [study_content(source) for source in sources]
    if options["diff"]:
        click.echo("".join(f"{line}\n" for line in digests[0]["diff"]), nl=False)
        return 0
    text = _text(compared(*digests) if len(digests) > 1 else digests[0], form)
    if output is None:
        click.echo(text, nl=False)
        return 0
    write_file(output, text, "--output")
    click.echo(f"written: {output}")
    return 0


def study_content(source: StudySource) -> Json:
    """Return what a study found; the files that its command names are read from where that was started."""
    from zenith_tune.report.study_digest import StudyDigest

    view = source.view()
    with view.header.at_home():
        return StudyDigest(source).object(view)


def _text(content: Json, form: str) -> str:
    if form == "html":
        from zenith_tune.report.html.page import render_page

        return render_page(content)
    if form == "json":
        return json.dumps(content, indent=2, allow_nan=False, default=str) + "\n"
    if form == "csv":
        from zenith_tune.report.study_markdown import study_csv

        return study_csv(content)
    from zenith_tune.report.study_markdown import comparison_markdown, study_markdown

    return comparison_markdown(content) if content["kind"] == "compare" else study_markdown(content)


def _default_output(sources: list[StudySource]) -> Path:
    folder = sources[0].view().folder
    name = "report.html" if len(sources) == 1 else f"report-{sources[0].name}-{sources[1].name}.html"
    if folder is None or not folder.is_dir():
        return Path(name)
    return folder / name if len(sources) == 1 else folder.parent / name
