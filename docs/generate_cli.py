"""Writes docs/cli.md from --help, or checks that it is not stale."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from zenith_tune.cli import cli

TARGET = Path(__file__).with_name("cli.md")


def render() -> str:
    """Return the page: one section per command."""
    context = click.Context(cli, info_name="zenithtune", max_content_width=100, terminal_width=100)
    sections = [("zenithtune", cli.get_help(context))]
    for name, command in sorted(cli.commands.items()):
        child = click.Context(command, info_name=name, parent=context, max_content_width=100, terminal_width=100)
        sections.append((f"zenithtune {name}", command.get_help(child)))
    parts = [f"## {title}\n\n```text\n{text}\n```\n" for title, text in sections]
    return "# The command line\n\nGenerated from `--help` by `make docs`; do not edit.\n\n" + "\n".join(parts)


def main() -> int:
    """Write the page, or with --check compare it."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(render())
        return 0
    if TARGET.exists() and TARGET.read_text() == render():
        return 0
    print("docs/cli.md is stale: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
