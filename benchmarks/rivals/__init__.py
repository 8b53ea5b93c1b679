"""Transfer methods of other projects, each in its own environment, on the tables of the studies.

A study (see `__main__`) starts a process that runs `worker`. In this process, code may import only
`numpy`, `pandas` and the packages of the rival.
"""
