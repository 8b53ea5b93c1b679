"""The hierarchical GP over the source tasks: what they share, and what is a task's own."""
