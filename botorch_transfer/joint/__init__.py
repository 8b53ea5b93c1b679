"""Joint models of all tasks: MTGP, MTKGP, WSGP, HGP and joint ScaML-GP."""
