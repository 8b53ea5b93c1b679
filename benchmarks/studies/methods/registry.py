"""All methods by name. To add a model, add a line to `MODELS`; for other methods, to `OTHERS`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.studies.methods.acquisitions import (
    COMMON,
    Acquire,
    log_ei_or_ucb,
    probability_of_improvement,
    upper_bound,
)
from benchmarks.studies.methods.base import Method
from benchmarks.studies.methods.baselines import (
    HistoryReplay,
    Opening,
    Portfolio,
    RandomSearch,
    SortedRows,
)
from benchmarks.studies.methods.models import (
    learned_hyperprior,
    multi_task_gp,
    plain_gp,
    pretrained,
    robust,
    transfer,
)
from benchmarks.studies.methods.optimization import (
    THOROUGH,
    THRIFTY,
    THRIFTY_JOINT,
    BayesianOptimization,
    Build,
    Fitting,
)
from botorch_transfer import (
    BoostedHierarchicalGP,
    GuardedTransferGP,
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    MeanHierarchicalGP,
    PopulationGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    TransferGP,
    TwoStageTransferGP,
    WeightedSourceGP,
)

Acquisition = Literal["log_ei", "mean_log_ei", "ucb", "paper"]
FittingName = Literal["thorough", "thrifty"]


@dataclass(frozen=True)
class Model:
    """A model for Bayesian optimization.

    Args:
        build: A function that builds the model.
        paper: The acquisition function in the paper of the model.
        initial_design: Whether the model needs target data.
        joint: Whether the cost of a fit grows with the cube of the number of all source points.
    """

    build: Build
    paper: Acquire
    initial_design: bool = False
    joint: bool = False

    def method(self, acquisition: Acquisition, fitting: FittingName) -> BayesianOptimization:
        """Returns the method that uses the model."""
        return BayesianOptimization(
            self.build,
            self.paper if acquisition == "paper" else COMMON[acquisition],
            self.initial_design,
            self._fitting(fitting),
            settings=f"{acquisition} {fitting}",
        )

    def _fitting(self, name: FittingName) -> Fitting:
        if name == "thorough":
            return THOROUGH
        return THRIFTY_JOINT if self.joint else THRIFTY


#: Models by the names in the papers.
MODELS: dict[str, Model] = {
    "ScaML-GP": Model(transfer(ScaMLGP), upper_bound),
    "plain GP": Model(plain_gp, log_ei_or_ucb, initial_design=True),
    "ScaML-GP, paper's hyperpriors": Model(transfer(ScaMLGP, hyperparameters="paper"), upper_bound),
    "TransferGP": Model(transfer(TransferGP), log_ei_or_ucb),
    "TransferGP, robust": Model(robust(transfer(TransferGP)), log_ei_or_ucb),
    "population": Model(transfer(PopulationGP), log_ei_or_ucb),
    "guarded": Model(transfer(GuardedTransferGP), log_ei_or_ucb),
    "RGPE": Model(transfer(RankWeightedGP), log_ei_or_ucb),
    "SGPT": Model(transfer(TwoStageTransferGP), log_ei_or_ucb),
    "MHGP": Model(transfer(MeanHierarchicalGP), upper_bound),
    "BHGP": Model(transfer(BoostedHierarchicalGP), upper_bound),
    "SHGP": Model(transfer(SequentialHierarchicalGP), upper_bound),
    "HGP": Model(transfer(JointHierarchicalGP), upper_bound, joint=True),
    "WSGP": Model(transfer(WeightedSourceGP), upper_bound, joint=True),
    "MTGP": Model(transfer(LinearCoregionalizationGP), upper_bound, joint=True),
    "MTKGP": Model(transfer(IntrinsicCoregionalizationGP), upper_bound, joint=True),
    "ScaML-GP, joint": Model(transfer(JointScaMLGP), upper_bound, joint=True),
    "H-NLL": Model(pretrained("hyperbo", "nll"), probability_of_improvement),
    "H-EKL": Model(pretrained("hyperbo", "ekl"), probability_of_improvement),
    # The prior means of these models are constant, like the mean of a plain GP.
    "FSBO": Model(pretrained("fsbo", "nll"), log_ei_or_ucb, initial_design=True),
    "ABLR": Model(pretrained("ablr", "nll"), log_ei_or_ucb, initial_design=True),
    "MPHD": Model(learned_hyperprior, probability_of_improvement, initial_design=True),
    "multi-task GP": Model(multi_task_gp, log_ei_or_ucb, initial_design=True),
}

#: Methods without a model and an acquisition function.
OTHERS: dict[str, Method] = {
    "best of history": HistoryReplay(),
    "random search": RandomSearch(),
    "sorted": SortedRows(),
    "portfolio": Portfolio(),
}

#: Methods that choose the first points for a plain GP.
OPENINGS = {f"{name}, then plain GP": name for name in ("sorted", "portfolio")}


def methods(
    names: Sequence[str] | None = None,
    acquisition: Acquisition = "log_ei",
    fitting: FittingName = "thorough",
) -> dict[str, Method]:
    """Looks up methods by name.

    Args:
        names: The names of the methods; all by default.
        acquisition: The acquisition function of all models: LogEI (before the first value, UCB or
            the posterior mean), UCB, or the function of each paper.
        fitting: The options of model fits: the defaults at every step, or fewer starts, iterations
            and fits.

    Returns:
        The methods by name, in the given order.

    Raises:
        ValueError: If there is no method with a given name.
    """
    everything: dict[str, Method] = {
        name: model.method(acquisition, fitting) for name, model in MODELS.items()
    }
    everything |= OTHERS
    for name, first in OPENINGS.items():
        everything[name] = Opening(OTHERS[first], MODELS["plain GP"].method(acquisition, fitting))
    unknown = [name for name in names or () if name not in everything]
    if unknown:
        raise ValueError(f"There is no method {unknown[0]!r}: choose from {', '.join(everything)}.")
    return {name: everything[name] for name in names or everything}


METHODS: dict[str, Method] = methods()
