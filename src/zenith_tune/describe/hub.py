"""A model's config.json from the Hugging Face hub, within a deadline."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zenith_tune.describe.config_json import FILE_NAME
from zenith_tune.errors import ModelConfigError

TIMEOUT_VARIABLE = "ZENITHTUNE_HUB_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 20.0
_CONNECT_TIMEOUT_S = 3.0
HINT = "give a local path as model=, or leave model out and give num_layers= and num_query_groups="


def fetch_config(model_id: str, hint: str = HINT) -> Path:
    """Return the path of a model's config.json, fetched from the hub or found in the hub's cache on this machine.

    HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and tokens count as everywhere; ZENITHTUNE_HUB_TIMEOUT_S is the deadline.
    `hint` is what else the caller accepts.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        problem = f"model {model_id!r} is no local path, and fetching it needs huggingface_hub, which is not installed"
        raise ModelConfigError(f"{problem}: pip install 'zenith-tune[hub]', or {hint}") from None
    timeout_s = _timeout_s()
    try:
        cached = try_to_load_from_cache(model_id, FILE_NAME)
        if (reason := _refused()) is None:
            with warnings.catch_warnings(action="ignore"):
                return _within(timeout_s, model_id)
        failure = ModelConfigError(f"{_unreachable(model_id)} ({reason})", hint=f"go online, or {hint}")
    except queue.Empty:
        # The hub's client retries for over a minute before it looks at its cache.
        problem = f"model {model_id!r}: the hub at {_endpoint()} did not answer within {timeout_s:g} s"
        failure = ModelConfigError(problem, hint=f"raise {TIMEOUT_VARIABLE}, or {hint}")
    except Exception as error:  # the hub's own errors, and whatever its HTTP library raises
        raise ModelConfigError(_explain(error, model_id, hint)) from error
    if isinstance(cached, str):
        return Path(cached)
    raise failure


def _refused() -> str | None:
    """Return why the hub cannot be connected to at all, which its own client would find out after many retries."""
    import urllib.parse
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():
        return None
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_TIMEOUT_S).close()
    except TimeoutError:
        return None  # it may only be slow, which the deadline decides
    except OSError as error:
        return _one_line(error)
    return None


def _timeout_s() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE) or str(DEFAULT_TIMEOUT_S)
    with suppress(ValueError):
        if 0 < (timeout_s := float(text)) <= threading.TIMEOUT_MAX:
            return timeout_s
    raise ModelConfigError(
        f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, but got {text!r}", hint="change it"
    )


def _within(timeout_s: float, model_id: str) -> Path:
    """Download in a separate thread, because nothing else ends the hub's retries; raise queue.Empty when too late."""
    from huggingface_hub import hf_hub_download

    answers: queue.Queue[str | Exception] = queue.Queue()

    def work() -> None:
        try:
            with _quiet():
                answers.put(hf_hub_download(model_id, FILE_NAME))
        except Exception as error:  # raised in the thread that waits
            answers.put(error)

    threading.Thread(target=work, name="zenith-tune-hub", daemon=True).start()
    answer = answers.get(timeout=timeout_s)
    if isinstance(answer, Exception):
        raise answer
    return Path(answer)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the hub's progress bars and messages off the terminal."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("huggingface_hub")
    handlers, propagate, bars = logger.handlers, logger.propagate, not are_progress_bars_disabled()
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    disable_progress_bars()
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        if bars:
            enable_progress_bars()


def _explain(error: Exception, model_id: str, hint: str) -> str:
    """Return one line on what went wrong and what to do; the most special errors come first."""
    from huggingface_hub import constants, errors

    match error:
        case errors.HFValidationError():
            problem = f"model {model_id!r} is neither a local path nor a valid Hugging Face id such as 'Qwen/Qwen3-8B'"
            return f"{problem}: check its spelling, or {hint}"
        case errors.GatedRepoError():
            problem = f"model {model_id!r} is gated: accept its licence at {_endpoint()}/{model_id} and set HF_TOKEN"
            return f"{problem}, or {hint}"
        case errors.RepositoryNotFoundError() | errors.RevisionNotFoundError():
            problem = f"model {model_id!r} does not exist at {_endpoint()}, or is private"
            return f"{problem}: check its spelling, set HF_TOKEN if it is private, or {hint}"
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() if constants.HF_HUB_OFFLINE:
            problem = f"model {model_id!r} is not in the Hugging Face cache, and HF_HUB_OFFLINE forbids to fetch it"
            return f"{problem}: unset HF_HUB_OFFLINE, or {hint}"
        case errors.LocalEntryNotFoundError():
            return f"{_unreachable(model_id)} ({_one_line(error.__cause__ or error)}): go online, or {hint}"
        case errors.EntryNotFoundError():
            return f"model {model_id!r} has no config.json at {_endpoint()}: {hint}"
    return f"{_unreachable(model_id)} ({type(error).__name__}: {_one_line(error)}): go online, or {hint}"


def _unreachable(model_id: str) -> str:
    return f"model {model_id!r} is no local path, and the hub at {_endpoint()} cannot be reached"


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
