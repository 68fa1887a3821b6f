"""Train a multimodal model whose modules have layouts of their own; needs torch (`pip install zenith-tune[mimo]`)."""
