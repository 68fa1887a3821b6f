"""What a plan is made for, or its model, looked up once: a preset asks for every point, and may have to do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from zenith_tune.errors import UsageError

S = TypeVar("S")


class LookedUp(Generic[S]):
    """Hold what was found, or why it is not known, from the first time that it is asked for."""

    def __init__(self, look_up: Callable[[], S]) -> None:
        self._look_up = look_up
        self._found: S | UsageError | None = None

    def get(self) -> S | UsageError:
        """Return it, or why that is not known."""
        if self._found is None:
            try:
                self._found = self._look_up()
            except UsageError as error:
                self._found = error
        return self._found

    def required(self) -> S:
        """Return it, or raise why that is not known."""
        found = self.get()
        if isinstance(found, UsageError):
            raise UsageError(str(found))
        return found
