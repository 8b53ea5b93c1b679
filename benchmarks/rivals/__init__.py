"""Rivals in one run: other projects' transfer, each in its own environment, on the same tables.

`studies` starts them (`__main__` says how), `worker` serves them: only `numpy` and `pandas` may be
imported on its side, and the rival's own packages.
"""
