"""Hierarchical GP over the source tasks: each task is a common function plus its own function."""
