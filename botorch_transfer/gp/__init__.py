"""GP code that all transfer methods share: kernels, likelihoods, posteriors and fits."""
