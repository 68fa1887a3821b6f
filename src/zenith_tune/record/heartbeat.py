"""Shows the other tuners of a study, every few seconds, that this one is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from zenith_tune.record.server.patience import is_away


class Heartbeat:
    """Call `show` from a thread of its own; a server that is away is asked again at the next beat."""

    def __init__(self, show: Callable[[], None], beat_s: float) -> None:
        self._show = show
        self._beat_s = beat_s
        self._is_over = threading.Event()
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @property
    def steady_s(self) -> float:
        """For how long every beat has reached the server: whoever was cut off cannot judge the silence of others."""
        return time.monotonic() - self._since

    def close(self) -> None:
        """Beat no more."""
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._is_over.wait(self._beat_s):
            try:
                self._show()
            except Exception as error:
                if not is_away(error):
                    raise
                self._since = time.monotonic()
