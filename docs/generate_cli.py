"""Writes docs/cli.md from --help, or checks that it is not stale."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from zenith_tune.cli.main import cli

TARGET = Path(__file__).with_name("cli.md")
COMPLETION = """## Completion by the shell

Tab completes commands, options, files, and the names of studies, models and clusters. This line turns it on; in
`~/.bashrc` it does so for good.

```bash
eval "$(_ZENITHTUNE_COMPLETE=bash_source zenithtune)"  # in zsh: zsh_source
```

In fish, put the output of `_ZENITHTUNE_COMPLETE=fish_source zenithtune` into
`~/.config/fish/completions/zenithtune.fish`.
"""
BROUGHT = [
    ("calibration", "zenith_calibration.calibrate.command:calibrate"),
    ("calibration", "zenith_calibration.probe.command:probe"),
    ("checkpoint", "zenith_checkpoint.cli:checkpoint"),
    ("kubernetes", "zenith_kubernetes.commands:recommend"),
    ("kubernetes", "zenith_kubernetes.commands:watch"),
]
"""Commands of other packages, each with its folder: they are on the page, also where torch has no wheel."""


def render() -> str:
    """Return the page: one section per command."""
    parts = [f"## {' '.join(['zenithtune', *words])}\n\n```text\n{help_of(words)}```\n" for words in commands(cli)]
    note = "<!-- Generated from `--help` by `make docs`; do not edit. -->"
    opening = (
        "Every command and option, as `--help` prints them. The commonest: `zenithtune optimize -- YOUR COMMAND`.\n"
        "Every command also has `--help`, and `--debug`, which shows a traceback when something goes wrong."
    )
    return f"# The command line\n\n{note}\n\n{opening}\n\n" + "\n".join([COMPLETION, *parts])


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield every command by the words that call it, each group before its own."""
    yield list(words)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield [*words, name]


def help_of(command: list[str]) -> str:
    """Return what `zenithtune COMMAND --help` prints on a wide terminal; where there are more options, all of them."""
    for flag in ("--help-all", "--help"):
        done = CliRunner().invoke(cli, [*command, flag], prog_name="zenithtune", terminal_width=100)
        if done.exit_code == 0:
            break
    return re.sub(r"^  (?:--debug|-h, --help) .*\n", "", done.output, flags=re.MULTILINE) if command else done.output


def main() -> int:
    """Write the page, or with --check compare it."""
    for folder, place in BROUGHT:
        sys.path.append(str(TARGET.parents[1] / folder / "src"))
        module, _, name = place.partition(":")
        cli.add_command(getattr(importlib.import_module(module), name))
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(render())
        return 0
    if TARGET.exists() and TARGET.read_text() == render():
        return 0
    print("docs/cli.md is stale: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
