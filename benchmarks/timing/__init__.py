"""How fast the package is, as ratios to BoTorch measured in the same run: `make bench-timing`.

Every module but these holds one comparison, a function from `Sizes` to `Row`s; a new one joins by
a line in `rows.COMPARISONS`. `gpu` measures the same work on a GPU and the CPU of its machine.
"""
