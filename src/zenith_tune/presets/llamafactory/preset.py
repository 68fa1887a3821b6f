"""Training by LLaMA-Factory: its YAML with overrides, and Hugging Face's Trainer inside."""

from __future__ import annotations

from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.llamafactory.command import LLAMA_FACTORY, is_llamafactory_command
from zenith_tune.presets.trainer.preset import TrainerPreset


@PresetRegistry.register("llamafactory")
class LlamaFactoryPreset(TrainerPreset):
    """Tune a command of LLaMA-Factory, as preset trainer does any that trains by Hugging Face's Trainer.

    What is tried, and the best command, are the user's own with overrides behind the file, or with options.
    """

    dialect = LLAMA_FACTORY

    @classmethod
    def recognises(cls, command: str) -> bool:
        """Tell whether `command` is `llamafactory-cli train`, or its `train.py` with a file of it."""
        return is_llamafactory_command(command)

    @classmethod
    def may_be_for(cls, command: str) -> bool:
        """Tell whether a run could show what the text does not: it says what it is."""
        return False
