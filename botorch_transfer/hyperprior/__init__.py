"""Distributions of GP hyperparameters, learned from other search spaces: MPHD and HyperBO+."""
