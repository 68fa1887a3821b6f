from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.describe.fake_smi import install, install_machine
from tests.describe.smi_samples import listed, matrix, uniform
from tests.mentions import mentions
from tests.started_processes import is_alive, wait_until
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.machine import local_cluster
from zenith_tune.errors import UsageError


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an empty folder before all others on PATH and return where its nvidia-smi goes."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "nvidia-smi"


def refusal(timeout_s: float = 20.0) -> str:
    with pytest.raises(UsageError) as caught:
        local_cluster(timeout_s)
    message = str(caught.value)
    assert "\n" not in message
    assert mentions(caught.value.hint, "h100x8")
    return message


def test_this_machine_is_read_from_its_nvidia_smi(smi: Path) -> None:
    install_machine(smi, listed("NVIDIA H100 80GB HBM3", 8), matrix(uniform(8, "NV18"), nics=8, colours=True))
    assert local_cluster() == load_cluster("h100x8")
    assert load_cluster("local") == load_cluster(" LOCAL ") == load_cluster("h100x8")


def test_one_gpu_is_not_asked_for_its_links(smi: Path) -> None:
    install(smi, f'[ "$1" = -L ] && echo "{listed("NVIDIA H200", 1).strip()}"')
    assert local_cluster().name == "h200x1"


def test_a_machine_without_nvidia_smi_is_refused(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(smi.parent))
    assert "PATH" in refusal()


def test_an_nvidia_smi_that_cannot_be_run_is_refused(smi: Path) -> None:
    smi.write_bytes(b"\x7fELF of another machine")
    smi.chmod(0o755)
    assert "Exec format error" in refusal()


def test_a_failing_nvidia_smi_is_quoted(smi: Path) -> None:
    install(smi, "echo 'NVIDIA-SMI has failed because it could not'; echo 'talk to the driver.' >&2; exit 9")
    assert mentions(refusal(), "status 9", "NVIDIA-SMI has failed because it could not talk to the driver")


def test_an_nvidia_smi_that_fails_with_much_noise_stays_one_line(smi: Path) -> None:
    install(smi, "head -c 100000 /dev/zero | tr '\\0' 'x'; exit 1")
    assert len(refusal()) < 500


def test_a_machine_whose_gpus_have_gone_is_refused(smi: Path) -> None:
    install(smi, "echo 'No devices were found'")
    assert "No devices were found" in refusal()


def test_links_that_cannot_be_read_are_refused(smi: Path) -> None:
    install(smi, 'if [ "$1" = -L ]; then ' + f"printf '{listed('NVIDIA L4', 2)}'; else exit 3; fi")
    assert mentions(refusal(), "nvidia-smi topo -m", "status 3")


def test_an_nvidia_smi_that_hangs_is_killed_with_its_children(smi: Path) -> None:
    install(smi, f"sh -c 'echo $$ > {smi.parent}/child; exec sleep 600' & wait")
    started = time.monotonic()
    assert mentions(refusal(timeout_s=0.5), "nvidia-smi -L", "0.5 s")
    assert time.monotonic() - started < 300
    child = int((smi.parent / "child").read_text())
    wait_until(lambda: not is_alive(child))
