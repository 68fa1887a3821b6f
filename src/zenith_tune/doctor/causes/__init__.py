"""Why a run died or waits, by its log: one cause per file, each with its evidence and what to do."""
