"""Joint models, one GP over source tasks and target: MTGP, MTKGP, WSGP, HGP and ScaML-GP."""
