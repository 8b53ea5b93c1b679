"""Parameters of a search space; their public names are in ``botorch_transfer.search_space``."""
