"""Pictures of how the models work, each drawn by one command into `out/`."""
