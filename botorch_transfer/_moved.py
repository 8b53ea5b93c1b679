"""Old module paths, so that imports, pickles and stored experiments of earlier versions load.

The package once had a file for each class. A module that has become part of another one can still
be imported by its old path: it has the names of the new module, and a ``DeprecationWarning`` says
which module that is. Read this when you move or rename something that users may have imported or
pickled: it then needs a line here.
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

_TABLE = """
ax.acquisition: ax._internals.acquisition ax.avoidance ax.improvement
ax.adapter: ax._internals.adapter ax._internals.auxiliary_adapter ax._internals.shared
ax.auxiliary: ax.attaching
ax.encoding: ax.spaces
ax.history: ax.tables
ax.model_inputs: ax.dataset ax.prior_files
ax.registration: ax._internals ax._internals.registration
ax.experiments: ax._internals.clients ax._internals.objectives ax.optimization
hyperpriors.priors: hyperpriors.families hyperpriors.log_density hyperpriors.maximum_likelihood
hyperpriors.spec: hyperpriors.bounds kernels.residual models.likelihoods
kernels.cache: kernels.input_cache
kernels.features: kernels.feature_network means.features
kernels.gaussian: pretraining.cholesky pretraining.stationary_nll
kernels.source_conditional: kernels.source_factor means.source_conditional
kernels.stationary: kernels.dense
kernels.task_kernels: kernels.free_coregionalization kernels.hierarchical_coregionalization
    kernels.weighted_sources
kernels.weighted_sum: means.weighted_sum
kernels.weights: kernels.ensemble_weights kernels.task_weights
models.ensemble: models.ranking
models.fully_bayesian: models.hyperparameter_ensemble models.single_points
models.guarded: models.guard_rule models.mixture models.paired
models.hierarchical: models.adjusted_hierarchical models.boosted_hierarchical
    models.mean_hierarchical models.sequential_hierarchical
models.hyperprior: models.hyperprior_modules
models.inputs: models.construction
models.joint: models.source_likelihood
models.joint_models: models.joint_coregionalization models.joint_hierarchical models.joint_scaml
    models.joint_weighted_source
models.pathwise.paths: models.path_parts
models.pathwise.samplers: models.ensemble_pathwise models.guarded_pathwise
    models.mean_hierarchical_pathwise
models.pathwise.sources: models.joint_pathwise models.pretrained_pathwise
models.report: models.source_evidence
models.target: models.finetuning models.leave_one_out models.loss_terms
outcome_transforms: outcome_warping
plotting: palette
pretraining.hyperprior.domain_fit: pretraining.domain_fit pretraining.domain_objective
    pretraining.sub_samples
pretraining.hyperprior.estimates: hyperpriors.draws hyperpriors.estimates
pretraining.hyperprior.hyperprior: pretraining.domain_checks
    pretraining.hyperparameter_distribution
pretraining.hyperprior.network: hyperpriors.context_gamma hyperpriors.context_network
    pretraining.network_fit
pretraining.hyperprior.validation: pretraining.hierarchical_nll pretraining.importance
    pretraining.leave_one_domain_out
pretraining.optimizers: pretraining.flat_parameters pretraining.random_batches
    pretraining.remembered_loss pretraining.vector_adam
pretraining.parallel: _threads pretraining.jobs pretraining.memory
pretraining.pretrained.checkpoints: pretraining.checkpoints pretraining.learning_curve
pretraining.pretrained.fit: pretraining.gradient_fit pretraining.held_out
    pretraining.pretraining_options
pretraining.pretrained.objectives: pretraining.matching_groups pretraining.objectives
    pretraining.source_loss pretraining.training_tasks
pretraining.pretrained.parts: pretraining.gp_parts pretraining.presets
pretraining.pretrained.prior: pretraining.frozen_gp pretraining.preset_gp
    pretraining.pretrained_prior pretraining.stored_gp
pretraining.source_gps.agreement: pretraining.agreement pretraining.relatedness
pretraining.source_gps.conditioned_prior: pretraining.conditioned_prior
pretraining.source_gps.from_models: pretraining.from_models
pretraining.source_gps.hierarchy: pretraining.source_hierarchy
pretraining.source_gps.map_fit: pretraining.map_fit pretraining.map_objective
pretraining.tasks: pretraining.outcome_scale pretraining.padding
search_space: _space
search_space.choice: _space.choice
search_space.numeric: _space.numeric
search_space.parameter: _space.parameter
search_space.simplex: _space.simplex
search_space.space: _space.checks _space.json_format _space.layout
test_functions.families: test_functions.alpine test_functions.branin test_functions.forrester
    test_functions.hartmann
"""
"""Each new module, a colon, and the old modules that are part of it now, below the package."""

MOVED: dict[str, str] = {
    old: new
    for new, olds in (
        entry.split(":") for entry in _TABLE.replace("\n    ", " ").split("\n") if entry
    )
    for old in olds.split()
}
"""New module paths by old ones, both without the package's name."""

RENAMED: dict[str, str] = {
    "hyperpriors.priors:for_map": "log_density_prior",
    "kernels.cache:InputCache": "Cache",
    "kernels.source_conditional:FactorMemory": "Cache",
    "models.fully_bayesian:HyperparameterEnsembleGP": "FullyBayesianHyperpriorGP",
    "models.target:PullToPretrained": "LogLikelihoodTerm",
    "models.guarded:PairedGP": "GuardedTransferGP",
    "models.hierarchical:AdjustedHierarchicalGP": "HierarchicalGP",
    "pretraining.hyperprior.hyperprior:HyperparameterDistribution": "Hyperprior",
    "pretraining.pretrained.prior:FrozenGP": "PretrainedPrior",
    "pretraining.pretrained.prior:PresetGP": "PretrainedPrior",
    "pretraining.pretrained.prior:StoredGP": "PretrainedPrior",
}
"""New names by ``"new.module:OldName"``, for classes and functions that moved and were renamed."""

_PREFIX = f"{__package__}."


class _MovedModule(ModuleType):
    """Stands in for an old module: looks its names up in the new one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        new = MOVED[self.__name__.removeprefix(_PREFIX)]
        parent, _, child = self.__name__.rpartition(".")
        if "_shadowed" in vars(self):
            setattr(sys.modules[parent], child, self._shadowed)
        return getattr(importlib.import_module(_PREFIX + new), RENAMED.get(f"{new}:{name}", name))


class _MovedFinder(MetaPathFinder, Loader):
    """Imports the stand-ins. Python asks it last, so it never hides a module that exists."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module that moved."""
        old = fullname.removeprefix(_PREFIX)
        if old == fullname or old not in MOVED:
            return None
        is_package = any(other.startswith(f"{old}.") for other in MOVED)
        return ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Makes the stand-in, and warns the code that imports it."""
        new = _PREFIX + MOVED[spec.name.removeprefix(_PREFIX)]
        message = f"{spec.name} moved: import from {new} instead."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return _MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Remembers a function of the parent package that has the module's name.

        The import puts the module in its place, and the first look at the module puts it back.
        """
        parent, _, child = module.__name__.rpartition(".")
        shadowed = vars(sys.modules[parent]).get(child)
        if shadowed is not None and not isinstance(shadowed, ModuleType):
            vars(module)["_shadowed"] = shadowed


def install() -> None:
    """Makes the old paths importable."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        sys.meta_path.append(_MovedFinder())
