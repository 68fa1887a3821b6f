"""The command `zenithtune serve`: a study as a page that follows it while it runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import PathType, debug_option, study_place
from zenith_tune.errors import UsageError

if TYPE_CHECKING:
    from zenith_tune.serve.study_index import StudyIndex


@click.command(short_help="Show a study as a page that follows it while it runs.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Where to listen.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port. [default: a free one]")
@click.option("--token", metavar="TOKEN", envvar="ZENITHTUNE_TOKEN",
              help="What a browser must show, also from ZENITHTUNE_TOKEN. [default: generated once per user]",
              )  # fmt: skip
@click.option("--socket", "socket_path", type=PathType(), metavar="PATH",
              help="Listen on a Unix socket that only you may use, instead of a port.")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--planner", is_flag=True, help="Serve a page to plan on instead, which needs no study.")
@study_place
@debug_option
@click.argument("study", metavar="[STUDY]", required=False, shell_complete=completion.studies)
def serve(study: str | None, **options: Any) -> int:
    """Serve the page of a study, which follows it without being loaded again; Ctrl-C ends it.

    STUDY is its name, its folder, or its study.json; without one it is the newest, and the page lists the others.
    Another process may be tuning it: from the page it can be paused, and a trial that runs can be cancelled.

    \b
    zenithtune serve
    zenithtune serve megatron-20260801-120000 --port 8123
    zenithtune serve --planner
    """
    from zenith_tune.serve.access import checked_token

    if options["planner"] and (study or options["db"] or options["output_dir"]):
        raise UsageError("--planner shows no study", hint="leave the study out")
    socket_path = options["socket_path"]
    token = checked_token(options["token"]) if socket_path is None else None
    from zenith_tune.serve.server import LiveServer
    from zenith_tune.serve.study_index import StudyIndex

    place = {name: options[name] for name in ("db", "output_dir")}
    studies = None if options["planner"] else StudyIndex.open(study, **place)
    server = LiveServer(studies, options["host"], options["port"], token, socket_path=socket_path)
    shown = "the planner" if studies is None else f"study {study or studies.names()[0]}"
    click.echo(f"serving {shown}: {server.address}")
    if socket_path is not None:
        click.echo(f"from your own machine: ssh -L 8123:{socket_path.absolute()} HOST, then http://localhost:8123/")
    elif not server.is_local:
        can = "plan" if studies is None else "watch, pause and cancel"
        click.echo(f"whoever has this address can {can}; it is not encrypted")
    click.echo("Ctrl-C stops the page" if studies is None else "Ctrl-C stops the page, not the study")
    if options["opens"]:
        import webbrowser

        # Some browsers are waited for, and wait for the page themselves.
        threading.Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
    if studies is not None:
        threading.Thread(target=_read_ahead, args=[studies], daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        click.echo("ended")
    finally:
        server.close()
    return 0


def _read_ahead(studies: StudyIndex) -> None:
    """Read the study while the browser opens; the page says what keeps it from being read."""
    with contextlib.suppress(UsageError):
        studies.get().look()
