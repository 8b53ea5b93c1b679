"""Tables in, rows out: the next rows to try, from old runs of similar problems."""

from botorch_transfer.suggestion.proposal import (
    Proposal,
    Target,
    in_log_scale,
    propose,
    propose_from,
    suggest,
)

__all__ = ["Proposal", "Target", "in_log_scale", "propose", "propose_from", "suggest"]
