"""Training by LLaMA-Factory."""

from __future__ import annotations

from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.llamafactory.command import LLAMA_FACTORY
from zenith_tune.presets.trainer.preset import TrainerPreset


@PresetRegistry.register("llamafactory")
class LlamaFactoryPreset(TrainerPreset):
    """Tune a command of LLaMA-Factory, as preset trainer does any that trains by Hugging Face's Trainer.

    What is tried, and the best command, are the user's own with overrides behind the file, or with options.
    """

    dialect = LLAMA_FACTORY
