"""A group of commands that loads each of them only when it is called: none waits for what the others import."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """Know commands by the module `<package>.<name>` that holds them."""

    names: tuple[str, ...] = ()
    package = "zenith_tune.cli"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self.names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loaded now if it was not yet."""
        if cmd_name in self.names and cmd_name not in self.commands:
            module = importlib.import_module(f"{self.package}.{cmd_name}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)
