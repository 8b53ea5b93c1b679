"""Pre-trained GPs: one GP for all tasks, learned by gradients (HyperBO, FSBO and ABLR)."""
