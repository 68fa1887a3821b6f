"""ZenithTune finds the fastest way to run a large-model training job on the hardware at hand."""
