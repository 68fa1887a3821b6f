"""Megatron Core's own multimodal model, optimizer and schedule, driven by the same layouts as the runtime here."""
