from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from zenith_checkpoint import tensor_view
from zenith_checkpoint.tensor_view import TensorView
from zenith_tune.errors import UsageError


@pytest.mark.parametrize("seed", range(30))
def test_cutting_and_joining_files_is_cutting_and_joining_arrays(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, numbers = Random(seed), np.random.default_rng(seed)
    monkeypatch.setattr(tensor_view, "BLOCK_BYTES", random.choice([1, 7, 64, 10_000]))
    num_rows, width = random.randint(1, 9), random.randint(1, 9)
    arrays = [numbers.integers(0, 256, (num_rows, width), np.uint8) for _ in range(3)]
    parts = []
    for number, array in enumerate(arrays):
        path = tmp_path / str(number)
        path.write_bytes(b"xyz" + array.tobytes())
        parts.append(TensorView.of_file(path, 3, num_rows, width))
    upright = random.random() < 0.5
    found = TensorView.stack(parts) if upright else TensorView.beside(parts)
    expected = np.concatenate(arrays, axis=0 if upright else 1)
    top, left = random.randrange(expected.shape[0]), random.randrange(expected.shape[1])
    bottom, right = random.randint(top + 1, expected.shape[0]), random.randint(left + 1, expected.shape[1])
    cut = found.rows(top, bottom).columns(left, right)
    assert np.array_equal(np.concatenate(list(cut.blocks())), expected[top:bottom, left:right])
    assert cut.num_bytes == (bottom - top) * (right - left)
    assert cut.equals(cut) and not cut.equals(found.rows(0, 0))


def test_a_file_that_became_shorter_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with pytest.raises(UsageError, match=f"{path} .*shorter"):
        TensorView.of_file(path, 0, 2, 2).read()


def test_what_is_constant_is_known_by_its_elements(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abababac")
    whole = TensorView.of_file(path, 0, 2, 4)
    assert whole.rows(0, 1).is_constant(2) and not whole.is_constant(2) and not whole.rows(0, 1).is_constant(1)
