"""Experiments with hyperpriors: the papers' of HyperBO+ and MPHD, and real search spaces."""
