"""The numerics that every method stands on: kernels, likelihoods, conditioned GPs, fits."""
