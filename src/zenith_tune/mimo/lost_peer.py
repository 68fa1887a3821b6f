"""What a rank says when another one is gone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch.distributed as dist

from zenith_tune.errors import ZenithTuneError

# gloo has no exception class of its own: these are words of its messages.
_GLOO_WORDS = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")


class LostPeerError(ZenithTuneError):
    """Report that another rank died or does not answer; the reason is in that rank's own log."""


@contextlib.contextmanager
def peers_expected(what: str) -> Iterator[None]:
    """Turn a backend's failure to reach another rank into one clear line."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in _GLOO_WORDS):
            raise
        rank = dist.get_rank() if dist.is_initialized() else "?"
        raise LostPeerError(
            f"rank {rank} lost another rank in {what} ({_reason(error)}): look for the first rank that failed."
        ) from error


def _reason(error: Exception) -> str:
    """Return the backend's first line without its source file and its advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).split(". This is typically")[0].rstrip(".")
