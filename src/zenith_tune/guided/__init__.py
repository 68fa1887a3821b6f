"""Guided tuning: what the planner believes of every layout, what trials have taught, and what to try next."""
