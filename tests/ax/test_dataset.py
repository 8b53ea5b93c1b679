from __future__ import annotations

import torch

from botorch_transfer.ax.model_inputs import TransferDataset, Transferred


def test_copies_and_folds_keep_the_source_tasks():
    X = torch.rand(4, 2)
    transferred = Transferred({"monday": (X, X[:, :1])}, sign=-1.0)
    dataset = TransferDataset(
        X, X[:, 1:], transferred=transferred, feature_names=["a", "b"], outcome_names=["loss"]
    )
    fold = dataset.clone(mask=torch.tensor([True, False, True, True]))
    assert fold.transferred is transferred
    assert len(fold.X) == 3
    assert dataset.clone(deepcopy=True) == dataset
