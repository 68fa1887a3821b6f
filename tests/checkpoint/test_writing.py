"""What is written is whole or not there: signals, full disks, and memory that a large checkpoint does not fit in."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.large_shards import MIB, large_shapes, write_large, write_large_bins
from tests.checkpoint.reference import Model, Shape
from tests.checkpoint.shard_files import need_torch, read, same, write_shards
from tests.mentions import mentions
from tests.requirements import need_root
from tests.started_processes import start_process
from zenith_checkpoint.convert import Target, merge, reshard
from zenith_tune.errors import DiskFullError, UsageError

LARGE_MIB = 384


def start(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "zenith_tune.cli.main", "checkpoint", *args]
    return start_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_part(output: Path, process: subprocess.Popen[str]) -> None:
    """Wait until something is half written."""
    for _ in range(50_000):
        if any(part.is_dir() or part.stat().st_size for part in output.parent.glob(f".{output.name}.*.part")):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("nothing was written in time")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "signum"),
    [
        ("merge", "one.safetensors", signal.SIGINT),
        ("merge", "one.bin", signal.SIGTERM),
        ("reshard", "new", signal.SIGHUP),
    ],
)
def test_a_signal_leaves_nothing_behind(tmp_path: Path, command: str, name: str, signum: signal.Signals) -> None:
    if name.endswith(".bin"):
        need_torch()
    source, output = write_large(tmp_path / "old", 2, LARGE_MIB), tmp_path / name
    degrees = [] if command == "merge" else ["--tp", "4", "--pp", "1", "--vocab-divisible-by", "1"]
    process = start(command, str(source), "--output", str(output), *degrees)
    wait_for_part(output, process)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 128 + signum
    assert errors.count("\n") == 1 and mentions(errors, "interrupted")
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.slow
def test_a_killed_merge_leaves_no_half_file_and_the_old_one_in_place(tmp_path: Path) -> None:
    source, output = write_large(tmp_path / "old", 2, LARGE_MIB), tmp_path / "one.safetensors"
    output.write_bytes(b"the old one")
    process = start("merge", str(source), "--output", str(output), "--force")
    wait_for_part(output, process)
    process.kill()
    process.communicate(timeout=500)
    assert output.read_bytes() == b"the old one"


def run_limited(code: str, *args: Path) -> None:
    """Run where only what is held counts as data: no stacks of torch's threads, no holes in malloc's heap."""
    command = [sys.executable, "-c", code, *map(str, args)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(MIB)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


LIMITED = """
import resource, sys
from pathlib import Path
from zenith_checkpoint import convert
def size(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024
source, output = map(Path, sys.argv[1:])
"""
WITHIN = f"""
# The mapped files of safetensors count as data; nothing else may be large.
resource.setrlimit(resource.RLIMIT_DATA, (size("VmData") + {LARGE_MIB + 128} * 2**20,) * 2)
"""


@pytest.mark.slow
def test_a_checkpoint_larger_than_the_memory_is_merged(tmp_path: Path) -> None:
    source, output = write_large(tmp_path / "old", 2, LARGE_MIB), tmp_path / "one.safetensors"
    run_limited(LIMITED + WITHIN + "convert.merge(source, output)", source, output)
    assert output.stat().st_size > (LARGE_MIB - 2) * MIB
    # The limit is real: half the model in one array does not fit under it.
    with pytest.raises(AssertionError, match="MemoryError"):
        code = f"mapped = convert.read_checkpoint(source); bytearray({LARGE_MIB // 2 * MIB})"
        run_limited(LIMITED + WITHIN + code, source, output)


@pytest.mark.slow
def test_a_checkpoint_larger_than_the_memory_is_resharded(tmp_path: Path) -> None:
    source, output = write_large(tmp_path / "old", 2, LARGE_MIB), tmp_path / "new"
    code = "convert.reshard(source, output, convert.Target(tp=4, pp=1, vocab_divisor=1))"
    run_limited(LIMITED + WITHIN + code, source, output)
    assert len(list(output.iterdir())) == 4


@pytest.mark.slow
def test_large_bins_are_merged_without_being_held_in_memory(tmp_path: Path) -> None:
    source, output = write_large_bins(tmp_path / "old", 2, LARGE_MIB, need_torch()), tmp_path / "one.safetensors"
    limit = 'resource.setrlimit(resource.RLIMIT_DATA, (size("VmData") + 160 * 2**20,) * 2)\n'
    run_limited(LIMITED + limit + "convert.merge(source, output)", source, output)
    assert output.stat().st_size > (LARGE_MIB - 2) * MIB


@pytest.mark.slow
def test_a_large_bin_is_written_from_pages_that_the_kernel_may_take_back(tmp_path: Path) -> None:
    torch = need_torch()
    source, output = write_large(tmp_path / "old", 2, LARGE_MIB), tmp_path / "one.bin"
    run_limited(LIMITED + WITHIN + "convert.merge(source, output)", source, output)
    merged = torch.load(output, weights_only=True, mmap=True)
    shapes = large_shapes(1, LARGE_MIB)
    assert {name: list(tensor.shape) for name, tensor in merged.items()} == shapes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "old", Model(Shape()), 2, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a real file system of half a megabyte."""
    need_root()
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_what_has_no_room_is_refused_before_it_is_written(tmp_path: Path, small_disk: Path) -> None:
    source = write_large(tmp_path / "old", 2, 2)
    with pytest.raises(DiskFullError, match=r"2\.0 MiB"):
        merge(source, small_disk / "one.safetensors")
    with pytest.raises(DiskFullError, match=str(small_disk)):
        reshard(source, small_disk / "new", Target(tp=1, pp=1))
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("name", ["one.safetensors", "one.bin"])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    if name.endswith(".bin"):
        need_torch()
    source = write_large(tmp_path / "old", 2, 6)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
    try:
        with pytest.raises(DiskFullError, match=re.escape(str(tmp_path))):
            merge(source, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [source]


def test_what_exists_is_replaced_only_by_force(tmp_path: Path, folder: Path) -> None:
    output = tmp_path / "one.safetensors"
    output.write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"exists.*--force"):
        merge(folder, output)
    assert output.read_bytes() == b"mine"
    merge(folder, output, force=True)
    assert same(read(output)[0], Model(Shape()).whole(12))


def test_a_folder_of_shards_is_replaced_only_by_force_and_others_never(tmp_path: Path, folder: Path) -> None:
    output, target = tmp_path / "new", Target(tp=1, pp=1, vocab_divisor=2)
    reshard(folder, output, Target(tp=2, pp=4, vocab_divisor=2))
    with pytest.raises(UsageError, match=r"holds shards.*--force"):
        reshard(folder, output, target)
    reshard(folder, output, target, force=True)
    assert [path.name for path in output.iterdir()] == ["pytorch_model_tp_0_pp_0.safetensors"]
    (output / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        reshard(folder, output, target, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


@pytest.mark.parametrize("place", ["old/one.safetensors", "old/in/one.safetensors", "link/one.safetensors"])
def test_nothing_is_written_into_the_checkpoints_own_folder(tmp_path: Path, folder: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UsageError, match=r"one\.safetensors"):
        merge(folder, tmp_path / place, force=True)
    with pytest.raises(UsageError, match=str(tmp_path)):
        reshard(folder, tmp_path, Target(tp=1, pp=1), force=True)
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("one.pt", ".safetensors or .bin"),
        ("nowhere/one.bin", "/nowhere "),
        ("x" * 300 + ".bin", "xxx"),
    ],
)
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, folder: Path, name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        merge(folder, tmp_path / name)


def test_a_new_file_has_the_permissions_that_the_user_gives_to_files(tmp_path: Path, folder: Path) -> None:
    before = os.umask(0o027)
    try:
        merge(folder, tmp_path / "one.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "one.safetensors").stat().st_mode & 0o777 == 0o640
