r"""Functions drawn from a joint GP's target task, given the source data.

A function of all tasks is drawn by random features of each data kernel, ``f(x, i) = Σ_ν φ_ν(x)ᵀ θ_ν
[F_ν]_i``, and corrected by the source data. Read it for the pathwise samples of the joint models.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from botorch.sampling.pathwise.features import gen_kernel_features
from torch import Tensor
from torch.nn import ModuleList

from botorch_transfer.gp.paths import ModelPath
from botorch_transfer.joint.conditional import SourceConditional


class JointPath(ModelPath):
    """Draws of the target's function in a joint GP, given the source data.

    Args:
        conditional: The joint GP's target task, given the source data.
        sample_shape: The sample shape.
        num_features: The number of random features of each data kernel.
        map_generator: Makes feature maps of kernels, as BoTorch's ``gen_kernel_features`` does.
    """

    loadings: Tensor
    correction: Tensor

    def __init__(
        self,
        conditional: SourceConditional,
        sample_shape: torch.Size,
        num_features: int,
        map_generator: Callable[..., Any] = gen_kernel_features,
    ) -> None:
        super().__init__()
        # A copy: a path stays what it is when the model's hyperparameters change.
        self.conditional = deepcopy(conditional).eval().requires_grad_(False)
        kernel, points = self.conditional.kernel, self.conditional.points
        self.feature_maps = ModuleList(
            map_generator(data_kernel, num_inputs=points.X.shape[-1], num_outputs=num_features)
            for data_kernel in kernel.data_kernels
        )
        factors = kernel.task_factors()
        shape = (*sample_shape, *self.conditional.batch_shape, factors.shape[-3])
        theta = points.X.new_empty(*shape, num_features, factors.shape[-1]).normal_()
        loadings = theta @ factors.mT  # ... x Q x num_features x T
        self.register_buffer("loadings", loadings[..., -1])
        self.register_buffer("correction", self._correct(loadings))

    def _correct(self, loadings: Tensor) -> Tensor:
        """``K⁻¹ (y_s - f(X_s) - ε)``, a ``sample_shape x batch_shape x N_s`` tensor."""
        points, factor = self.conditional.points, self.conditional.factor()
        sizes = torch.tensor(points.sizes, device=points.X.device)
        tasks = torch.arange(len(points.sizes), device=points.X.device).repeat_interleave(sizes)
        values = self._combine(points.X, loadings)  # of all tasks at all points
        index = tasks.unsqueeze(-1).expand(*values.shape[:-1], 1)
        values = values.gather(-1, index).squeeze(-1)
        noise = self.conditional.noise.variances(points).sqrt() * torch.randn_like(values)
        residual = (points.Y - values - noise).unsqueeze(-1).double()
        solved = [
            torch.cholesky_solve(residual[..., rows, :], root)
            for (_, rows), root in zip(self.conditional.groups, factor.roots, strict=True)
        ]
        return torch.cat(solved, dim=-2).squeeze(-1).to(values)

    def _combine(self, x: Tensor, loadings: Tensor) -> Tensor:
        """``Σ_ν φ_ν(x) loadings_ν`` for ``... x Q x num_features x T`` loadings."""
        maps = zip(self.feature_maps, loadings.unbind(dim=-3), strict=True)
        return torch.stack([feature_map(x) @ loading for feature_map, loading in maps]).sum(dim=0)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        values = self._combine(x, self.loadings.unsqueeze(-1))
        update = self.conditional.cross(x) @ self.correction.unsqueeze(-1)
        return (values + update).squeeze(-1)
