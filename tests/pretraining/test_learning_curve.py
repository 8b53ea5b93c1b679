from __future__ import annotations

from botorch_transfer.pretraining.pretrained.checkpoints import LearningCurve


def test_tensors_and_back():
    curve = LearningCurve([3.0, 2.5], [0, 2], [4.0, 3.5], best_step=2)
    again = LearningCurve.from_tensors(curve.tensors())
    assert again == curve
    empty = LearningCurve()
    assert LearningCurve.from_tensors(empty.tensors()) == empty
