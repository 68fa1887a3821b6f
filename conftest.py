"""What pytest leaves out."""

# Doctests are collected by importing, in every worker, and these load torch: tests/mimo/test_doctests.py runs them.
collect_ignore_glob = ["src/zenith_tune/mimo/*"]
