"""Independent source GPs, and the models that weigh them: ScaML-GP, RGPE and SGPT."""
