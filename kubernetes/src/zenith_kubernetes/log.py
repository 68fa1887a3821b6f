"""Follows the log of a pod: a stream that ends or breaks is taken up again where it was, no line lost or twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

from zenith_kubernetes.api import ApiError, ApiSilentError, Cluster
from zenith_kubernetes.pods import Pod

_PAUSE_S = 0.5


class PodLog:
    """The log of one pod, which a thread brings here line by line."""

    def __init__(self, cluster: Cluster, pod: Pod, write: Callable[[bytes], object]) -> None:
        self._cluster, self._pod, self._write = cluster, pod, write
        self._path = cluster.path("pods", pod.name)
        self._last, self._num_same = b"", 0
        """The time of the last line, and how many lines have it."""
        self._is_over, self._is_final = threading.Event(), threading.Event()
        self.error: OSError | None = None
        """What kept it from being written here, such as a full disk."""
        self._thread = threading.Thread(target=self._run, name=f"log-{pod.name}", daemon=True)
        self._thread.start()

    def finish(self, limit_s: float) -> bool:
        """Wait until all that was printed is here, now that the pod has ended; returns whether it is."""
        self._is_over.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Take no more of it."""
        self._is_final.set()

    def _run(self) -> None:
        while not self._is_final.is_set():
            # Asked before the log is: all that it had printed by then is in what follows.
            was_over = self._is_over.is_set()
            try:
                self._take(follow=not was_over)
            except ApiSilentError:
                was_over = False
            except ApiError as error:
                if error.status == 404:
                    return
                was_over = was_over and error.status == 400  # its container never began
            except OSError as error:
                self.error, was_over = error, False
            if was_over:
                return
            (self._is_final if self._is_over.is_set() else self._is_over).wait(_PAUSE_S)

    def _take(self, *, follow: bool) -> None:
        """Write the lines that are not here yet."""
        query = {"sinceTime": self._last.decode()} if self._last else {}
        held, num_seen = b"", 0
        lines = self._cluster.stream(
            f"{self._path}/log", container=self._pod.container, follow=follow, timestamps=True, **query
        )
        last, num_same = self._last, self._num_same
        for text in lines:
            *whole, held = (held + text).split(b"\n")
            for line in whole:
                stamp, _, printed = line.partition(b" ")
                if stamp == last:
                    num_seen += 1
                if stamp < last or (stamp == last and num_seen <= num_same):
                    continue  # it is here from the stream before
                self._put(stamp, printed + b"\n")
            if self._is_final.is_set():
                return
        if held and not follow:  # a last line without an end
            stamp, _, printed = held.partition(b" ")
            if stamp > self._last:
                self._put(stamp, printed)

    def _put(self, stamp: bytes, text: bytes) -> None:
        self._write(text)
        self._num_same = self._num_same + 1 if stamp == self._last else 1
        self._last = stamp
