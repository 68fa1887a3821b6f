"""A user's training command: CommandLine reads and edits its options; the rest of this folder is how it finds them."""

from zenith_tune.shell.command_line import CommandLine, plain_value

__all__ = ["CommandLine", "plain_value"]
