"""Writes docs/cli.md from --help, or checks that it is not stale."""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from zenith_tune.cli import cli

TARGET = Path(__file__).with_name("cli.md")


def render() -> str:
    """Return the page: one section per command."""
    commands = [[], *([name] for name in sorted(cli.commands))]
    parts = [f"## {' '.join(['zenithtune', *command])}\n\n```text\n{help_of(command)}```\n" for command in commands]
    return "# The command line\n\nGenerated from `--help` by `make docs`; do not edit.\n\n" + "\n".join(parts)


def help_of(command: list[str]) -> str:
    """Return what `zenithtune COMMAND --help` prints on a wide terminal."""
    return CliRunner().invoke(cli, [*command, "--help"], prog_name="zenithtune", terminal_width=100).output


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
