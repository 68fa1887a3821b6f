"""The packages as users install them: built, and in an environment of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import zenith_tune
from tests.conftest import ROOT
from tests.requirements import skip

SIBLINGS = ("layoutbench", "calibration", "checkpoint", "kubernetes", "mimo", "rl")
DOCKERFILE = ROOT / "Dockerfile"


def test_every_package_takes_its_version_from_the_same_place() -> None:
    home = Path(zenith_tune.__file__)
    for sibling in SIBLINGS:
        project = tomllib.loads((ROOT / sibling / "pyproject.toml").read_text())
        assert "version" in project["project"]["dynamic"]
        assert (ROOT / sibling / project["tool"]["hatch"]["version"]["path"]).resolve() == home


def test_every_package_is_built_and_published() -> None:
    found = {path.parent.name for path in ROOT.glob("*/pyproject.toml")}
    assert found == set(SIBLINGS)
    published = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]
    assert set(published["build"]["strategy"]["matrix"]["package"]) == {".", *SIBLINGS}
    assert published["publish"]["permissions"] == {"id-token": "write"}, "no token is stored"
    built = re.search(r"^dist:.*\n(?:\t.*\n)*?\tfor package in (.*?);", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert built is not None and set(built[1].split()) == {".", *SIBLINGS}


def test_the_image_is_made_of_files_that_are_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for *names, _ in copies() for name in names}
    assert copied == kept and all((ROOT / name).exists() for name in copied)


def copies() -> list[list[str]]:
    """Return the files of each COPY from the clone, and where they go."""
    lines = re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Built from the files that the Dockerfile copies, by the commands that it runs."""
    build, dist, bin_folder = tmp_path / "build", tmp_path / "dist", tmp_path / "venv" / "bin"
    build.mkdir()
    for *names, target in copies():
        for name in names:
            place = build / target / name if target.endswith("/") else build / target
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)
    subprocess.run([sys.executable, "-m", "venv", bin_folder.parent], check=True)
    make, install = re.findall(r"^RUN (pip .*?)(?: && .*)?$", DOCKERFILE.read_text(), re.MULTILINE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL", "ZENITH"))}
    clean = {**kept, "PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(command: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=clean, capture_output=True, text=True)
        if "Failed to establish a new connection" in done.stderr:
            skip("pypi", "the index is not reached")
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(make.replace("/dist", str(dist)), build)
    shutil.rmtree(build)
    run(f"{install.replace('/dist', str(dist))} --no-compile")
    assert zenith_tune.__version__ in run("zenithtune --version")
    assert "TP" in run("zenithtune plan --model llama3-8b --cluster h100x8 --gbs 64 --seq 4096")
    found = run("zenithtune doctor --self")
    assert f"kubernetes {zenith_tune.__version__}" in found and re.search(r"frameworks: +none", found), "no torch"
