"""Numerics that all methods share: kernels, likelihoods, conditioned GPs and fits."""
