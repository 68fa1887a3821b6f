"""Who used which GPU from when to when, by the word of the trials themselves."""

from __future__ import annotations

import itertools
from pathlib import Path

NOTE = """
start=$(date +%s.%N); sleep "$2"; end=$(date +%s.%N)
echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $start $end" > "$ZENITHTUNE_TRIAL_FOLDER/used"
echo "value: $1"
"""
"""A trainer: its first argument is its value, its second how many seconds it takes."""
MEETING = """
start=$(date +%s.%N); touch "$ZENITHTUNE_TRIAL_FOLDER/began"
for _ in $(seq 4000); do
  if [ "$(ls "$ZENITHTUNE_TRIAL_FOLDER"/../*/began | wc -l)" -ge "$2" ]; then break; fi
  sleep 0.1
done
end=$(date +%s.%N)
echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $start $end" > "$ZENITHTUNE_TRIAL_FOLDER/used"
echo "value: $1"
"""
"""A trainer whose second argument is how many trials must have begun before it ends: side by side, or never."""

GpuUse = list[tuple[str, float, float]]


def gpu_use(study: Path) -> GpuUse:
    """Return each GPU of each node with a beginning and an end, in order."""
    used = []
    for path in study.glob("trials/*/used"):
        if not (noted := path.read_text().split()):
            continue  # it is just being written
        node, gpus, start, end = noted
        used += [(f"{node}:{gpu}", float(start), float(end)) for gpu in gpus.split(",")]
    return sorted(used)


def check_no_gpu_was_given_twice(used: GpuUse) -> None:
    for (gpu, _, end), (next_gpu, start, _) in itertools.pairwise(used):
        assert gpu != next_gpu or start >= end, f"{gpu} was given to two trials at once"
