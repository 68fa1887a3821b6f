"""Reinforcement learning after pre-training: steps that generate answers and train on them, planned and tuned."""
