"""Training by Axolotl."""

from __future__ import annotations

from zenith_tune.presets.axolotl.command import AXOLOTL
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.trainer.preset import TrainerPreset


@PresetRegistry.register("axolotl")
class AxolotlPreset(TrainerPreset):
    """Tune a command of Axolotl, as preset trainer does any that trains by Hugging Face's Trainer.

    What is tried, and the best command, are the user's own with options that win over the file.
    """

    dialect = AXOLOTL
