"""Other people's methods, to compare with: our readings of their papers, not their programs.

A competitor is made by `build(history, bounds, seed)`, and then suggests points: one of a pool by
`suggest(train_X, train_Y, candidates)`, or the best of the whole space by optimizing what
`acquisition(train_X, train_Y)` returns.
"""

from benchmarks.competitors.competitor import Competitor, History
from benchmarks.competitors.copula_process import CopulaProcess
from benchmarks.competitors.mimo import SharedSubnetworks
from benchmarks.competitors.rfgp import RandomFeatureGP
from benchmarks.competitors.robust_meta_ucb import RobustMetaUCB
from benchmarks.competitors.stboh import HandTunedGP

__all__ = [
    "Competitor",
    "CopulaProcess",
    "HandTunedGP",
    "History",
    "RandomFeatureGP",
    "RobustMetaUCB",
    "SharedSubnetworks",
]
