"""Hierarchical GP over the source tasks: a common function, and an own function of each task."""
