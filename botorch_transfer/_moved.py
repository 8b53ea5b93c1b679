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

# Each new module, and the old ones that are part of it now; ``.name`` is of its top package.
_TABLE = """
acquisition: ax.improvement
ax.acquisition: ._internals.acquisition .avoidance
ax.adapter: ._internals.adapter ._internals.auxiliary_adapter ._internals.shared
ax.encoding: .spaces
ax.history: .attaching .auxiliary .tables
ax.model_inputs: .dataset .prior_files
ax.registration: ._internals ._internals.registration
ax.experiments: ._internals.clients ._internals.objectives .optimization
hyperpriors.priors: .families .log_density .maximum_likelihood
hyperpriors.spec: .bounds kernels.residual models.likelihoods
kernels.cache: .input_cache
kernels.conditioned: .conditioned_batch
kernels.coregionalization: .free_coregionalization .hierarchical_coregionalization
    .weighted_sources
kernels.features: .feature_network means.features
kernels.gaussian: pretraining.cholesky pretraining.stationary_nll
kernels.source_conditional: .source_factor .source_points means.source_conditional
kernels.stationary: .dense
kernels.weighted_sum: .ensemble_weights .task_weights means.weighted_sum
models.ensemble: .ranking .rank_weighted .two_stage
models.guarded: .guard_rule .mixture .paired
models.hierarchical: .adjusted_hierarchical .boosted_hierarchical .mean_hierarchical
    .sequential_hierarchical
models.hyperprior: .fully_bayesian .hyperparameter_ensemble .hyperprior_modules .single_points
models.inputs: .construction
models.joint: .source_likelihood .joint_coregionalization .joint_hierarchical .joint_scaml
    .joint_weighted_source
models.pathwise: .path_parts .ensemble_pathwise .guarded_pathwise .joint_pathwise
    .mean_hierarchical_pathwise .pretrained_pathwise
models.report: .source_evidence
models.target: .finetuning .leave_one_out .loss_terms
outcome_transforms: outcome_warping
plotting: palette
pretraining.hyperprior.domain_fit: .domain_fit .domain_objective .sub_samples
pretraining.hyperprior.estimates: hyperpriors.draws hyperpriors.estimates
pretraining.hyperprior.hyperprior: .domain_checks .hyperparameter_distribution
pretraining.hyperprior.network: hyperpriors.context_gamma hyperpriors.context_network .network_fit
pretraining.hyperprior.validation: .hierarchical_nll .importance .leave_one_domain_out
pretraining.optimizers: .flat_parameters .random_batches .remembered_loss .vector_adam
pretraining.parallel: _threads .jobs .memory
pretraining.pretrained.checkpoints: .checkpoints .learning_curve
pretraining.pretrained.fit: .gradient_fit .held_out .pretraining_options
pretraining.pretrained.objectives: .matching_groups .objectives .source_loss .training_tasks
pretraining.pretrained.parts: .gp_parts .presets
pretraining.pretrained.prior: .frozen_gp .preset_gp .pretrained_prior .stored_gp
pretraining.source_gps.agreement: .agreement .relatedness
pretraining.source_gps.conditioned_prior: .conditioned_prior
pretraining.source_gps.from_models: .from_models
pretraining.source_gps.hierarchy: .source_hierarchy
pretraining.source_gps.map_fit: .map_fit .map_objective
pretraining.tasks: .outcome_scale .padding
search_space: _space
search_space.parameters: _space.choice _space.numeric _space.parameter _space.simplex
search_space.space: _space.checks _space.json_format _space.layout
test_functions.families: .alpine .branin .family .forrester .gaussian_process .hartmann
"""

MOVED: dict[str, str] = {
    f"{new.partition('.')[0]}{old}" if old.startswith(".") else old: new
    for new, olds in (line.split(":") for line in _TABLE.replace("\n    ", " ").split("\n") if line)
    for old in olds.split()
}
"""New module paths by old ones, both without the package's name."""

RENAMED: dict[str, str] = {
    "hyperpriors.priors:for_map": "log_density_prior",
    "kernels.cache:InputCache": "Cache",
    "kernels.source_conditional:FactorMemory": "Cache",
    "models.hyperprior:HyperparameterEnsembleGP": "FullyBayesianHyperpriorGP",
    "models.target:PullToPretrained": "LogLikelihoodTerm",
    "models.guarded:PairedGP": "GuardedTransferGP",
    "models.hierarchical:AdjustedHierarchicalGP": "HierarchicalGP",
    "pretraining.hyperprior.hyperprior:HyperparameterDistribution": "Hyperprior",
    "pretraining.pretrained.objectives:TrainingTasks": "SourceLoss",
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
