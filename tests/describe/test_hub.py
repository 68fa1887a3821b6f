from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.describe.fake_hub import fake_hub
from tests.requirements import need_module
from tests.warm_process import run_python

SCRIPT = """
import sys
from zenith_tune.describe.model_catalog import read_model_config
from zenith_tune.errors import ModelConfigError
try:
    print(read_model_config(sys.argv[1]))
except ModelConfigError as error:
    print("ModelConfigError:", error)
"""
SHAPE_SCRIPT = """
import sys
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import ModelConfigError
try:
    print(load_model(sys.argv[1]).name, load_model(sys.argv[1]).num_params)
except ModelConfigError as error:
    print("ModelConfigError:", error)
"""
Read = Callable[..., str]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    need_module("hub", "huggingface_hub")
    with fake_hub() as address:
        yield address


@pytest.fixture
def read(endpoint: str, tmp_path: Path) -> Read:
    """Return a function that reads a model's config in a process of its own: the hub's settings are read at import."""

    def run(model: str, python_code: str = SCRIPT, **settings: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        env = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1", **settings}
        strict = f"import warnings\nwarnings.simplefilter('error')\n{python_code}"
        done = run_python(["-c", strict, model], tmp_path, env, timeout_s=500)
        assert done.stderr == ""
        assert done.returncode == 0
        [line] = done.stdout.splitlines()
        return line

    return run


def assert_refused(line: str, *shown: str) -> None:
    """Check that an error shows what it must, and what else may be given in place of a model of the hub."""
    assert line.startswith("ModelConfigError: ")
    assert [part for part in (*shown, "model=", "num_layers=", "num_query_groups=") if part not in line] == []


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_model_is_read_from_the_hub_without_a_word_on_the_terminal(read: Read) -> None:
    line = read("org/good")
    assert "num_layers=36, num_query_groups=8, num_attention_heads=32, num_experts=None" in line
    assert "source='org/good'" in line


def test_a_gated_model_says_to_accept_its_licence(read: Read, endpoint: str) -> None:
    assert_refused(read("org/gated"), "gated", f"{endpoint}/org/gated", "HF_TOKEN")


def test_a_missing_model_says_to_check_its_spelling(read: Read, endpoint: str) -> None:
    assert_refused(read("org/missing"), "'org/missing'", endpoint, "spelling", "HF_TOKEN")


def test_a_private_model_is_read_with_its_token_only(read: Read) -> None:
    assert_refused(read("org/private"), "HF_TOKEN")
    assert "num_layers=36" in read("org/private", HF_TOKEN="hf_right")


def test_a_repository_without_config_says_so(read: Read, endpoint: str) -> None:
    assert_refused(read("org/weights-only"), "'org/weights-only'", "no config.json", endpoint)


def test_an_id_that_cannot_be_one_is_named(read: Read) -> None:
    assert_refused(read("not/a/model"), "'not/a/model'", "spelling")


def test_a_slow_hub_is_given_up_at_the_deadline(read: Read, endpoint: str) -> None:
    start = time.monotonic()
    line = read("org/slow", ZENITHTUNE_HUB_TIMEOUT_S="0.5")
    assert_refused(line, endpoint, "0.5 s", "ZENITHTUNE_HUB_TIMEOUT_S")
    assert time.monotonic() - start < 300


def test_an_unreachable_hub_is_given_up_at_the_deadline(read: Read) -> None:
    address = f"http://127.0.0.1:{_closed_port()}"
    start = time.monotonic()
    line = read("org/good", HF_ENDPOINT=address, ZENITHTUNE_HUB_TIMEOUT_S="8")
    assert_refused(line, "'org/good'", address)
    assert time.monotonic() - start < 300


def test_a_cached_model_is_read_though_the_hub_cannot_be_reached(read: Read) -> None:
    fresh = read("org/good")
    address = f"http://127.0.0.1:{_closed_port()}"
    assert read("org/good", HF_ENDPOINT=address, ZENITHTUNE_HUB_TIMEOUT_S="1") == fresh


def test_a_cached_model_is_read_though_the_hub_no_longer_answers(read: Read) -> None:
    fresh = read("org/tired")
    start = time.monotonic()
    assert read("org/tired", ZENITHTUNE_HUB_TIMEOUT_S="0.5") == fresh
    assert time.monotonic() - start < 300


def test_no_progress_bar_is_drawn_on_a_terminal(endpoint: str, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "TERM": "xterm", "NO_PROXY": "127.0.0.1"}
    env.pop("HF_HUB_DISABLE_PROGRESS_BARS", None)
    try:
        command = [sys.executable, "-c", SCRIPT, "org/good"]
        done = subprocess.run(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=slave, timeout=500)
        os.write(slave, b"END")
        assert os.read(master, 10_000) == b"END"
    finally:
        os.close(slave)
        os.close(master)
    assert b"num_layers=36" in done.stdout


def test_offline_mode_reads_the_cache_and_says_what_it_forbids(read: Read) -> None:
    assert_refused(read("org/good", HF_HUB_OFFLINE="1"), "'org/good'", "unset HF_HUB_OFFLINE")
    fresh = read("org/good")
    assert read("org/good", HF_HUB_OFFLINE="1") == fresh


def test_a_deadline_that_is_no_number_of_seconds_is_named(read: Read) -> None:
    for text in ("soon", "0", "-1", "nan", "inf"):
        line = read("org/good", ZENITHTUNE_HUB_TIMEOUT_S=text)
        assert "ZENITHTUNE_HUB_TIMEOUT_S" in line and repr(text) in line


def test_without_huggingface_hub_the_message_says_what_to_install(read: Read) -> None:
    blocked = "import sys; sys.modules['huggingface_hub'] = None\n" + SCRIPT
    assert_refused(read("org/good", blocked), "pip install 'zenith-tune[hub]'")


def test_the_hubs_own_settings_are_left_as_they_were(read: Read) -> None:
    script = """
import logging, sys
from huggingface_hub import hf_hub_download
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from zenith_tune.describe.hub import fetch_config
logger = logging.getLogger("huggingface_hub")
before = (list(logger.handlers), logger.propagate, logger.level, are_progress_bars_disabled())
fetch_config(sys.argv[1])
print(before == (list(logger.handlers), logger.propagate, logger.level, are_progress_bars_disabled()))
"""
    assert read("org/good", script) == "True"


def test_a_models_whole_shape_is_read_from_the_hub(read: Read) -> None:
    assert read("org/good", SHAPE_SCRIPT) == "org/good 8190735360"


def test_a_model_that_the_hub_does_not_have_names_the_catalog_as_a_way_out(read: Read) -> None:
    line = read("org/missing", SHAPE_SCRIPT)
    assert line.startswith("ModelConfigError") and "'org/missing'" in line and "llama3-8b" in line
