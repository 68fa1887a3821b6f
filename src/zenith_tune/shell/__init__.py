"""A user's training command: read once into a ParsedCommand, edited, and interpreted where it is a script."""

from zenith_tune.shell.parsed_command import ParsedCommand, plain_value

__all__ = ["ParsedCommand", "plain_value"]
