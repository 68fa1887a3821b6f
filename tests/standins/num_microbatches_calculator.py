"""Stand in for the module of Megatron Core by this name: the calculator of a constant batch, and its functions."""

from __future__ import annotations

from typing import Any

_CALCULATOR: Any = None


class NumMicroBatchesCalculator:
    """What all calculators have."""

    num_micro_batches: int
    running: int

    def get(self) -> int:
        return self.num_micro_batches

    def get_current_running_global_batch_size(self) -> int:
        return self.running


class ConstantNumMicroBatchesCalculator(NumMicroBatchesCalculator):
    """The calculator of a batch that stays as it is."""

    def __init__(self, gbs: int, mbs: int, dp: int) -> None:
        self.num_micro_batches, self.running = gbs // (mbs * dp), gbs

    def update(self, consumed_samples: int, consistency_check: bool, verbose: bool = False) -> None:
        """Stay the same."""


def init_num_microbatches_calculator(rank: int, rampup: list[int] | None, gbs: int, mbs: int, dp: int) -> None:
    global _CALCULATOR
    _CALCULATOR = ConstantNumMicroBatchesCalculator(gbs, mbs, dp)


def get_num_microbatches() -> int:
    return int(_CALCULATOR.get())


def update_num_microbatches(consumed_samples: int, consistency_check: bool = True, verbose: bool = False) -> None:
    _CALCULATOR.update(consumed_samples, consistency_check, verbose)
