"""Old module paths, so that imports, pickles and stored experiments of earlier versions load.

The package once had a file for each class. A module that moved can be imported by its old path
still: it has the names of the module that it became a part of, and a ``DeprecationWarning`` says
which that is.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = __package__

MOVED: dict[str, str] = {
    "_space": "search_space",
    "_space.checks": "search_space.space",
    "_space.choice": "search_space.choice",
    "_space.json_format": "search_space.json_format",
    "_space.layout": "search_space.space",
    "_space.numeric": "search_space.numeric",
    "_space.parameter": "search_space.parameter",
    "_space.simplex": "search_space.simplex",
    "_threads": "pretraining.parallel",
    "ax._internals": "ax.registration",
    "ax._internals.acquisition": "ax.acquisition",
    "ax._internals.adapter": "ax.adapter",
    "ax._internals.auxiliary_adapter": "ax.adapter",
    "ax._internals.clients": "ax.runs",
    "ax._internals.objectives": "ax.runs",
    "ax._internals.registration": "ax.registration",
    "ax._internals.shared": "ax.adapter",
    "ax.attaching": "ax.auxiliary",
    "ax.avoidance": "ax.acquisition",
    "ax.dataset": "ax.model_inputs",
    "ax.improvement": "ax.acquisition",
    "ax.optimization": "ax.runs",
    "ax.spaces": "ax.encoding",
    "ax.tables": "ax.history",
    "hyperpriors.bounds": "hyperpriors.spec",
    "hyperpriors.context_gamma": "pretraining.hyperprior.network",
    "hyperpriors.context_network": "pretraining.hyperprior.network",
    "hyperpriors.draws": "pretraining.hyperprior.distribution",
    "hyperpriors.estimates": "pretraining.hyperprior.distribution",
    "hyperpriors.families": "hyperpriors.priors",
    "hyperpriors.log_density": "hyperpriors.priors",
    "hyperpriors.maximum_likelihood": "hyperpriors.priors",
    "kernels.dense": "kernels.stationary",
    "kernels.ensemble_weights": "kernels.weights",
    "kernels.feature_network": "kernels.features",
    "kernels.free_coregionalization": "kernels.task_kernels",
    "kernels.hierarchical_coregionalization": "kernels.task_kernels",
    "kernels.input_cache": "kernels.cache",
    "kernels.residual": "hyperpriors.spec",
    "kernels.source_factor": "kernels.source_conditional",
    "kernels.task_weights": "kernels.weights",
    "kernels.weighted_sources": "kernels.task_kernels",
    "means.features": "kernels.features",
    "means.source_conditional": "kernels.source_conditional",
    "means.weighted_sum": "kernels.weighted_sum",
    "models.adjusted_hierarchical": "models.hierarchical",
    "models.boosted_hierarchical": "models.hierarchical",
    "models.construction": "models.inputs",
    "models.ensemble_pathwise": "models.pathwise.samplers",
    "models.finetuning": "models.pretrained",
    "models.guard_rule": "models.guarded",
    "models.guarded_pathwise": "models.pathwise.samplers",
    "models.hyperparameter_ensemble": "models.fully_bayesian",
    "models.hyperprior_modules": "models.hyperprior",
    "models.joint_coregionalization": "models.joint_models",
    "models.joint_hierarchical": "models.joint_models",
    "models.joint_pathwise": "models.pathwise.sources",
    "models.joint_scaml": "models.joint_models",
    "models.joint_weighted_source": "models.joint_models",
    "models.leave_one_out": "models.target",
    "models.likelihoods": "hyperpriors.spec",
    "models.loss_terms": "models.target",
    "models.mean_hierarchical": "models.hierarchical",
    "models.mean_hierarchical_pathwise": "models.pathwise.samplers",
    "models.mixture": "models.guarded",
    "models.paired": "models.guarded",
    "models.path_parts": "models.pathwise.paths",
    "models.pretrained_pathwise": "models.pathwise.sources",
    "models.ranking": "models.ensemble",
    "models.sequential_hierarchical": "models.hierarchical",
    "models.single_points": "models.fully_bayesian",
    "models.source_evidence": "models.report",
    "models.source_likelihood": "models.joint",
    "outcome_warping": "outcome_transforms",
    "palette": "plotting",
    "pretraining.agreement": "pretraining.source_gps.agreement",
    "pretraining.checkpoints": "pretraining.pretrained.checkpoints",
    "pretraining.cholesky": "kernels.gaussian",
    "pretraining.conditioned_prior": "pretraining.source_gps.conditioned_prior",
    "pretraining.domain_checks": "pretraining.hyperprior.distribution",
    "pretraining.domain_fit": "pretraining.hyperprior.domain_fit",
    "pretraining.domain_objective": "pretraining.hyperprior.domain_fit",
    "pretraining.flat_parameters": "pretraining.optimizers",
    "pretraining.from_models": "pretraining.source_gps.from_models",
    "pretraining.frozen_gp": "pretraining.pretrained.parts",
    "pretraining.gp_parts": "pretraining.pretrained.parts",
    "pretraining.gradient_fit": "pretraining.pretrained.fit",
    "pretraining.held_out": "pretraining.pretrained.fit",
    "pretraining.hierarchical_nll": "pretraining.hyperprior.validation",
    "pretraining.hyperparameter_distribution": "pretraining.hyperprior.distribution",
    "pretraining.importance": "pretraining.hyperprior.validation",
    "pretraining.jobs": "pretraining.parallel",
    "pretraining.learning_curve": "pretraining.pretrained.checkpoints",
    "pretraining.leave_one_domain_out": "pretraining.hyperprior.validation",
    "pretraining.map_fit": "pretraining.source_gps.map_fit",
    "pretraining.map_objective": "pretraining.source_gps.map_fit",
    "pretraining.matching_groups": "pretraining.pretrained.objectives",
    "pretraining.memory": "pretraining.parallel",
    "pretraining.network_fit": "pretraining.hyperprior.network",
    "pretraining.objectives": "pretraining.pretrained.objectives",
    "pretraining.outcome_scale": "pretraining.tasks",
    "pretraining.padding": "pretraining.tasks",
    "pretraining.preset_gp": "pretraining.pretrained.parts",
    "pretraining.presets": "pretraining.pretrained.parts",
    "pretraining.pretrained_prior": "pretraining.pretrained.prior",
    "pretraining.pretraining_options": "pretraining.pretrained.fit",
    "pretraining.random_batches": "pretraining.optimizers",
    "pretraining.relatedness": "pretraining.source_gps.agreement",
    "pretraining.remembered_loss": "pretraining.optimizers",
    "pretraining.source_hierarchy": "pretraining.source_gps.hierarchy",
    "pretraining.source_loss": "pretraining.pretrained.objectives",
    "pretraining.stationary_nll": "kernels.gaussian",
    "pretraining.stored_gp": "pretraining.pretrained.parts",
    "pretraining.sub_samples": "pretraining.hyperprior.domain_fit",
    "pretraining.training_tasks": "pretraining.pretrained.objectives",
    "pretraining.vector_adam": "pretraining.optimizers",
    "test_functions.alpine": "test_functions.families",
    "test_functions.branin": "test_functions.families",
    "test_functions.forrester": "test_functions.families",
    "test_functions.hartmann": "test_functions.families",
}
"""Old module paths and the modules that hold their names now, both without the package's name."""

RENAMED: dict[str, str] = {}
"""Names that changed, by ``"new.module:OldName"``."""


class _Moved(ModuleType):
    """A module that looks its names up elsewhere."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        new = importlib.import_module(f"{_PACKAGE}.{MOVED[self.__name__.removeprefix(_PREFIX)]}")
        path = new.__name__.removeprefix(_PREFIX)
        return getattr(new, RENAMED.get(f"{path}:{name}", name))


_PREFIX = f"{_PACKAGE}."


class _Finder(MetaPathFinder, Loader):
    """Finds the old paths; asked last, so that nothing that exists is hidden."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module that moved."""
        if not name.startswith(_PREFIX) or name.removeprefix(_PREFIX) not in MOVED:
            return None
        is_package = any(old.startswith(f"{name.removeprefix(_PREFIX)}.") for old in MOVED)
        return ModuleSpec(name, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Makes the stand-in."""
        old = spec.name.removeprefix(_PREFIX)
        warnings.warn(
            f"{spec.name} moved: import from {_PREFIX}{MOVED[old]} instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        return _Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is to be run."""


def install() -> None:
    """Lets the old paths be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
