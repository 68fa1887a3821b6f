"""The command line: parses, calls and prints; heavy parts are imported when a command runs."""

from __future__ import annotations

import importlib
import io
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from zenith_tune import __version__
from zenith_tune.errors import MissingPackageError, SystemFaultError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


class ZenithTune(click.Group):
    """All commands: each in a module of its own, or brought by an installed package through an entry point."""

    modules = (
        *("doctor", "export", "guide", "optimize", "plan", "recover", "report", "serve"),
        *("studies.compare", "studies.import_", "studies.list", "studies.resume"),
    )
    """Modules of this folder, each of its command's name."""
    siblings: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("calibrate", "probe"), "calibration"),
        "checkpoint": "checkpoint",
        **dict.fromkeys(("recommend", "watch"), "kubernetes"),
    }
    """Commands of this project's other packages, with the extra that installs each."""

    @property
    def _module_of(self) -> dict[str, str]:
        return {module.rpartition(".")[2].rstrip("_"): module for module in self.modules}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._module_of, *_packaged_commands().names})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UnknownNameError("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = self._module_of.get(cmd_name)
        if path is not None and cmd_name not in self.commands:  # imported now, and not before
            module = importlib.import_module(f"zenith_tune.cli.{path}")
            commands = [each for each in vars(module).values() if isinstance(each, click.Command)]
            self.add_command(next(each for each in commands if each.name == cmd_name))
        elif cmd_name not in self.commands:
            for point in _packaged_commands().select(name=cmd_name):
                self.add_command(point.load(), cmd_name)
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in self.siblings:
            raise MissingPackageError(f"zenithtune {cmd_name}", self.siblings[cmd_name])
        return found


def _packaged_commands() -> EntryPoints:
    from zenith_tune.registry import entry_points  # not at the top: few commands need it

    return entry_points("zenith_tune.commands")


@click.group(cls=ZenithTune, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="zenithtune")
def cli() -> None:
    """Find the fastest way to run a large-model training job on the hardware at hand."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    warnings.showwarning = lambda message, *_, **__: click.echo(f"zenithtune: warning: {message}", err=True)
    arguments = sys.argv[1:] if argv is None else argv
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # no character that a terminal cannot show may end a study
    sys.exit(_run(arguments, own))


def _run(arguments: list[str], own: list[str]) -> int:
    try:
        Path.cwd()
    except FileNotFoundError:
        click.echo("zenithtune: the working folder was deleted: go to one that exists", err=True)
        return 2
    try:
        return int(cli.main(args=arguments, prog_name="zenithtune", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        return 0
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone
        return 1
    except Exception as error:
        if "--debug" in own:
            traceback.print_exc()
        line, code = _explain(error)
        from zenith_tune.shell.secrets import find_secrets, mask

        line = " ".join(line.split())
        # Neither the secrets of the training command nor passwords in URLs reach the terminal.
        secrets = [*find_secrets(" ".join(arguments[len(own) :])), *find_secrets(line)]
        click.echo(f"zenithtune: {mask(line, secrets)}", err=True)
        return code


def _explain(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.exceptions.NoSuchOption):
        command = error.ctx.command if error.ctx else cli
        own = "Options of the training command go after --."
        hints = {"cli": "Give a command: zenithtune optimize.", "optimize": own}
        hint = hints.get(command.name or "", f"zenithtune {command.name} --help lists them.")
        if error.possibilities:
            hint = f"Did you mean {' or '.join(error.possibilities)}? {hint}"
        return f"No such option {error.option_name!r}. {hint}", 2
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        from zenith_tune.cli.options import missing

        lacking = [each for each in error.ctx.command.params if each.required and each.name not in error.ctx.params]
        arguments = [each.human_readable_name for each in lacking if isinstance(each, click.Argument)]
        return missing([each.opts[-1] for each in lacking if isinstance(each, click.Option)], arguments), 2
    if isinstance(error, click.UsageError):
        return error.format_message(), 2
    if isinstance(error, UsageError):
        return str(error), 2
    if isinstance(error, SystemFaultError):
        return str(error), 1
    from zenith_tune.registry import raising_plug
    from zenith_tune.study.faults import is_system_fault

    if is_system_fault(error):
        return f"the system refuses ({error}): see to it and try again", 1
    plug = raising_plug(error)
    what = f"{plug} raised" if plug else "unexpected"
    return f"{what} {type(error).__name__}: {error} (--debug shows where)", 1


if __name__ == "__main__":
    main()
