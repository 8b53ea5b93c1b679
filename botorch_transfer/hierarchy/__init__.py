"""Source tasks in sequence: MHGP, SHGP and BHGP."""
