"""Timings of the package relative to BoTorch, measured in the same run: `make bench-timing`.

A comparison is a module with a function from `Sizes` to `Row`s. To add a comparison, add a line to
`rows.COMPARISONS`. `gpu` measures the same work on a GPU and on the CPU of the same machine.
"""
