"""What changed of a study since somebody last heard of it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

Json = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


class ChangeLog:
    """Number the looks at a study, and remember for each of its parts in which look that last changed.

    A marker such as `9f31c2d4-17` names a look. One of another server, or of before a trial vanished, is answered with
    everything.
    """

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._fields: _Dated[str] = _Dated()
        self._trials: _Dated[int] = _Dated()

    @property
    def marker(self) -> str:
        """The name of the last look that brought something new."""
        return f"{self._epoch}-{self._number}"

    def take(self, fields: Mapping[str, Any], trials: Mapping[int, Json]) -> bool:
        """Take in a look; tell whether anything is other than it was."""
        if self._trials.lacks(trials) or self._fields.lacks(fields):
            self._epoch, self._number = secrets.token_hex(4), 0
            self._fields, self._trials = _Dated(), _Dated()
        number = self._number + 1
        # Both are asked: each also remembers.
        is_new = [self._fields.take(fields, number), self._trials.take(trials, number)]
        self._number = number if any(is_new) else self._number
        return any(is_new)

    def since(self, marker: str | None) -> Json:
        """Return what is new since a look, under the marker of now."""
        number = self._number_of(marker)
        return {
            "marker": self.marker,
            "is_all": number == 0,
            "fields": self._fields.since(number),
            "trials": list(self._trials.since(number).values()),
        }

    def _number_of(self, marker: str | None) -> int:
        match = re.fullmatch(r"([0-9a-f]{8})-(\d{1,12})", marker or "")
        return int(match[2]) if match and match[1] == self._epoch and int(match[2]) <= self._number else 0


class _Dated(Generic[Key]):
    """Hold values by key, each with the number of the look that brought it."""

    def __init__(self) -> None:
        self._values: dict[Key, tuple[int, Any]] = {}

    def lacks(self, values: Mapping[Key, Any]) -> bool:
        """Tell whether something that was there is gone."""
        return not self._values.keys() <= values.keys()

    def take(self, values: Mapping[Key, Any], number: int) -> bool:
        known = self._values
        changed = {key: value for key, value in values.items() if key not in known or known[key][1] != value}
        known |= {key: (number, value) for key, value in changed.items()}
        return bool(changed)

    def since(self, number: int) -> dict[Key, Any]:
        return {key: value for key, (changed, value) in self._values.items() if changed > number}
