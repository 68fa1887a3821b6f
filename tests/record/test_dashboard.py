from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import need_module
from tests.started_processes import start_process
from tests.study_tools import tune

pytestmark = pytest.mark.slow


def get(url: str, timeout_s: float = 500) -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=500) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_the_study_opens_in_optuna_dashboard_as_it_is(tmp_path: Path) -> None:
    need_module("dashboard", "optuna_dashboard")
    tune(tmp_path, "sh -c 'echo value: {x}; [ {x} != 2 ]'").optimize()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"sqlite:///{tmp_path}/out/studies.db"
    code = "import sys; from optuna_dashboard._cli import main; main()"
    server = start_process(
        [sys.executable, "-c", code, url, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        studies = get(f"http://127.0.0.1:{port}/api/studies")["study_summaries"]
        assert [study["study_name"] for study in studies] == ["s"]
        detail = get(f"http://127.0.0.1:{port}/api/studies/{studies[0]['study_id']}?after=0")
        assert [(trial["state"], trial.get("values")) for trial in detail["trials"]] == [
            *(("Complete", [1.0]), ("Fail", None), ("Complete", [3.0]))
        ]
        assert [trial["params"][0]["param_external_value"] for trial in detail["trials"]] == ["1", "2", "3"]
    finally:
        server.terminate()
        server.wait(timeout=500)
