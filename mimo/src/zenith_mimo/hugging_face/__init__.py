"""Stages of Hugging Face's vision towers and language models: weights from safetensors files, and back to them."""

from zenith_mimo.hugging_face.causal import CausalStage
from zenith_mimo.hugging_face.export import export_module
from zenith_mimo.hugging_face.folder import read_config
from zenith_mimo.hugging_face.positions import image_positions
from zenith_mimo.hugging_face.vision import QwenVisionStage, VisionStage

__all__ = ["CausalStage", "QwenVisionStage", "VisionStage", "export_module", "image_positions", "read_config"]
