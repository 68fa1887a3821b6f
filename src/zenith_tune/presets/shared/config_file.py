"""The YAML and JSON files that a command names, read and written a value at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.training_files import path_in_training_folder, read_yaml
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.options import Splice, apply_splices
from zenith_tune.shell.parsed_command import script_text
from zenith_tune.study.parameters import Value

ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class ConfigFile:
    r"""A file of settings, whose comments and form are kept.

    >>> file = ConfigFile("conf/a.yaml", "model: {layers: 2}  # small\nlr: 1e-3\n")
    >>> file.value("model.layers"), file.with_values({"model.layers": 4, "lr": 1e-05})
    (2, 'model: {layers: 4}  # small\nlr: 1.0e-05\n')
    """

    path: str
    text: str

    @property
    def name(self) -> str:
        """The name without its folder."""
        return self.path.rpartition("/")[2]

    @cached_property
    def content(self) -> Any:
        """What the file holds; None where it cannot be read."""
        try:
            return read_yaml(self.text)
        except ValueError:
            return None

    def value(self, key: str) -> Value | None:
        """Return the plain value at a key such as model.layers; None where there is none."""
        found = self.content
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found if isinstance(found, (bool, int, float, str)) else None

    def with_values(self, values: Mapping[str, Value]) -> str:
        import yaml

        splices = []
        for key, value in values.items():
            node = yaml.compose(self.text, Loader=yaml.SafeLoader)
            for part in key.split("."):
                node = next(inner for name, inner in reversed(node.value) if name.value == part)
            # YAML takes 1e-05 for a text.
            text = json.dumps(value)
            text = text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
            splices.append(Splice(node.start_mark.index, node.end_mark.index, text))
        return apply_splices(self.text, splices)


def config_files(command: str) -> list[ConfigFile]:
    """Return the files of settings among the arguments of a command that can be read."""
    found = {}
    for argument in ParsedCommand.of(command).arguments:
        path = argument.rpartition("=")[2]
        if path.endswith(ENDINGS):
            try:
                text = script_text(str(path_in_training_folder(command, path)))
            except UsageError:
                continue
            found[path] = ConfigFile(path, text)
    return list(found.values())
