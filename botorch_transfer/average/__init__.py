"""Averages of posteriors: ``TransferGP``, the default, and ``GuardedTransferGP``."""
