"""Training by Axolotl: its YAML with options, and Hugging Face's Trainer inside."""

from __future__ import annotations

from zenith_tune.presets.axolotl.command import AXOLOTL, is_axolotl_command
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.trainer.preset import TrainerPreset


@PresetRegistry.register("axolotl")
class AxolotlPreset(TrainerPreset):
    """Tune a command of Axolotl, as preset trainer does any that trains by Hugging Face's Trainer.

    What is tried, and the best command, are the user's own with options that win over the file.
    """

    dialect = AXOLOTL

    @classmethod
    def recognises(cls, command: str) -> bool:
        """Tell whether `command` is `axolotl train`, or its module by any launcher."""
        return is_axolotl_command(command)

    @classmethod
    def may_be_for(cls, command: str) -> bool:
        """Tell whether a run could show what the text does not: it says what it is."""
        return False
