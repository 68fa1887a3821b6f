"""What limits a training run, and what to change: one kind of advice per file, each a function of a case."""
