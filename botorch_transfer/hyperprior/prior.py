"""HyperBO+ and MPHD: a distribution over GP hyperparameters, learned from other search spaces.

This distribution is the prior of :class:`~botorch_transfer.models.HyperpriorGP` and
:class:`~botorch_transfer.models.FullyBayesianHyperpriorGP`. The pre-training, including MPHD's
network, is in ``hyperprior.fit``. :func:`hierarchical_negative_log_likelihood` evaluates how well a
hyperprior predicts whole tasks.

.. [Fan2022hyperboplus]
    Z. Fan, X. Han and Z. Wang. HyperBO+: Pre-training a universal prior for Bayesian optimization
    with hierarchical Gaussian processes. 2022. arXiv:2212.10538.

.. [Fan2024mphd]
    Z. Fan, X. Han and Z. Wang. Transfer Learning for Bayesian Optimization on Heterogeneous Search
    Spaces. TMLR 2024. arXiv:2309.16597.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Self, cast

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.priors import GammaPrior, NormalPrior, Prior
from torch import Tensor

from botorch_transfer.data import Domain, SourceData, as_datasets, default_context
from botorch_transfer.gp.hyperpriors import describe_prior, make_prior
from botorch_transfer.gp.stationary import stationary_function
from botorch_transfer.gp.tasks import OutcomeScale, check_choice
from botorch_transfer.hyperprior.fit import (
    ContextNetwork,
    DomainEstimates,
    DomainFitOptions,
    HyperparameterDraws,
    NetworkOptions,
    fit_domains,
    fit_gamma,
    fit_network,
    fit_normal,
    log_likelihoods,
)
from botorch_transfer.input_transforms import as_learned, fits_dim, shared_transform
from botorch_transfer.outcome_transforms import OutcomeMoments, PooledStandardize, Steps
from botorch_transfer.prior import TransferPrior

Kind = Literal["mphd", "universal", "empirical"]

#: Scaling of outcomes. Outcomes of several domains are not pooled, because their units may differ.
DomainScale = Literal["per_task", "raw"]

_SHARED = ("constant", "outputscale", "noise")

_ESTIMATES = "estimates_"


class Hyperprior(TransferPrior):
    r"""A distribution over the hyperparameters of a GP: the prior of MPHD and HyperBO+.

    Use a hyperprior to transfer between different search spaces; the package's other priors cannot
    do so. A hyperprior learns typical lengthscales, signal variances and noise variances. The tasks
    of a domain (a search space) are assumed to be draws of one GP, with a constant mean and a
    stationary kernel with a lengthscale for each input. Step 1 estimates the hyperparameters of
    this GP for each domain. Step 2 fits distributions to the estimates: a Normal to the constant
    means, and Gammas to the other hyperparameters. Use half a dozen domains or more. Neither the
    hyperprior nor its saved file contains source observations.

    Build a hyperprior by :meth:`fit` or :meth:`specified`, not by the constructor.

    Args:
        kind: ``"mphd"``: a network maps an input's context (a vector that describes the input) to
            the Gamma distribution of the input's lengthscale; ``"universal"``: one Gamma for all
            lengthscales (HyperBO+); ``"empirical"``: the set of estimates itself, without
            distributions (\*HyperBO+).
        kernel: The stationary kernel's name.
        priors: The hyperpriors of ``"constant"``, ``"outputscale"``, ``"noise"`` and, without a
            network, ``"lengthscale"``. Their parameters are copied.
        network: The trained network, for kind ``"mphd"``.
        estimates: The GP hyperparameters that were estimated for each domain (step 1).
        default_contexts: Whether the network was trained on contexts from ``default_context``.
        outcome_scale: The units of the outcomes: ``"per_task"`` or ``"raw"``.
        input_transform: The common input transform of all domains; ``None`` if their input
            transforms differ.
        outcome_steps: The element-wise transforms, such as ``Log``, that were applied to all
            outcomes.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> lab = Domain([(X, X.sum(-1, keepdim=True)), (X, X.prod(-1, keepdim=True))], name="lab")
        >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
        >>> hyperprior = Hyperprior.fit([lab, shop], kind="universal")
        >>> hyperprior.lengthscale_prior(dim=5)
        GammaPrior()
    """

    constant_parameters: Tensor
    network: ContextNetwork | None

    def __init__(
        self,
        kind: Kind,
        kernel: str,
        priors: Mapping[str, Prior],
        network: ContextNetwork | None = None,
        estimates: DomainEstimates | None = None,
        default_contexts: bool = True,
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        outcome_steps: Steps | None = (),
    ) -> None:
        super().__init__(outcome_scale, input_transform)
        check_choice("kind", kind, Kind)
        if kind == "empirical" and estimates is None:
            raise ValueError(
                "An empirical hyperprior needs the hyperparameters of each domain: give estimates=."
            )
        # A hyperprior that is specified by hand may be used with any outcomes.
        self.outcome_steps = None if estimates is None else outcome_steps
        stationary_function(kernel)
        self.kind, self.kernel = kind, kernel
        self.default_contexts = default_contexts
        self.task_names = () if estimates is None else tuple(estimates.names)
        self.families: dict[str, str] = {}
        for name, prior in priors.items():
            self.families[name], parameters = describe_prior(prior)
            self.register_buffer(f"{name}_parameters", parameters.double())
        self.network = network
        for name, value in {} if estimates is None else vars(estimates).items():
            if isinstance(value, Tensor):
                self.register_buffer(f"{_ESTIMATES}{name}", value)

    # ------------------------------------------------------------------------------ training

    @classmethod
    def fit(
        cls,
        domains: Sequence[Domain],
        kind: Kind = "mphd",
        kernel: str | None = None,
        outcome_scale: OutcomeScale = "per_task",
        network: NetworkOptions | None = None,
        **options: Any,
    ) -> Self:
        r"""Learns a hyperprior from domains, in the two steps of [Fan2024mphd]_.

        Args:
            domains: The domains, each with its source tasks.
            kind: ``"mphd"``: a network maps an input's context (a vector that describes the input)
                to the Gamma distribution of the input's lengthscale; ``"universal"``: one Gamma for
                all lengthscales (HyperBO+); ``"empirical"``: the set of estimates itself, without
                distributions (\*HyperBO+).
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``; by default the
                kernel of the paper: Matérn 5/2 for MPHD and Matérn 3/2 for the other methods.
            outcome_scale: ``"per_task"`` standardizes the outcomes of each task by itself, as
                needed for domains with different units. ``"raw"`` does not change the outcomes, as
                in the papers.
            network: The options of MPHD's network; other kinds have no network.
            **options: The fields of :class:`~.pretraining.DomainFitOptions`, for the fit of a GP to
                each domain.

        Returns:
            The hyperprior, in double precision on the device of the first domain's data.

        Raises:
            InputDataError: If there are no domains, if two domains have the same name, if the
                contexts differ in size, or if a domain is too large or has constant outcomes.
            ValueError: If an argument is unknown or out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> lab = Domain([(X, X.sum(-1, keepdim=True))], name="lab")
            >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
            >>> hyperprior = Hyperprior.fit([lab, shop], network=NetworkOptions(num_steps=10))
            >>> hyperprior.estimates.lengthscale.shape
            torch.Size([3])
        """
        check_choice("kind", kind, Kind)
        check_choice("outcome_scale", outcome_scale, DomainScale)
        check_domains(domains)
        kernel = kernel or ("matern52" if kind == "mphd" else "matern32")
        estimates = fit_domains(domains, kernel, outcome_scale, DomainFitOptions(**options))
        broad = float(estimates.outputscale.mean().sqrt())
        priors: dict[str, Prior] = {}
        priors["constant"] = NormalPrior(*fit_normal(estimates.constant, broad, "constant mean"))
        for name in ("lengthscale", "outputscale", "noise"):
            priors[name] = GammaPrior(*fit_gamma(getattr(estimates, name), name))
        fitted = None
        if kind == "mphd":
            base = describe_prior(priors.pop("lengthscale"))[1]
            settings = network or NetworkOptions()
            fitted = fit_network(estimates.context, estimates.lengthscale, base, settings)
        defaults = all(domain.has_default_context for domain in domains)
        shared = shared_transform([domain.input_transform for domain in domains])
        learned = cls(kind, kernel, priors, fitted, estimates, defaults, outcome_scale, shared)
        return learned.to(domains[0].datasets[0].X.device)

    @classmethod
    def specified(
        cls,
        constant: Prior,
        lengthscale: Prior,
        outputscale: Prior,
        noise: Prior,
        kernel: str = "matern52",
        outcome_scale: OutcomeScale = "raw",
    ) -> Self:
        """Builds a hyperprior from given distributions.

        Args:
            constant: The hyperprior of the constant mean, a ``NormalPrior`` or ``UniformPrior``.
            lengthscale: The hyperprior of each lengthscale. Lengthscale, signal variance and noise
                variance need a univariate ``GammaPrior`` or ``UniformPrior``.
            outputscale: The hyperprior of the signal variance.
            noise: The hyperprior of the noise variance.
            kernel: The stationary kernel's name.
            outcome_scale: The units of the outcomes: ``"raw"``, or ``"per_task"`` for standardized
                outcomes.

        Returns:
            The hyperprior, for any number of inputs.

        Raises:
            ValueError: If a distribution is not supported, if a lengthscale or variance could be
                zero or negative, if ``constant`` is a ``GammaPrior``, which excludes negative
                values, or if ``kernel`` or ``outcome_scale`` is unknown.

        Example:
            >>> from gpytorch.priors import GammaPrior, NormalPrior
            >>> noise = GammaPrior(1.0, 100.0)
            >>> positive = GammaPrior(2.0, 4.0)
            >>> hyperprior = Hyperprior.specified(NormalPrior(0.0, 1.0), positive, positive, noise)
        """
        check_choice("outcome_scale", outcome_scale, DomainScale)
        positive = {"lengthscale": lengthscale, "outputscale": outputscale, "noise": noise}
        for name, prior in positive.items():
            family, parameters = describe_prior(prior)
            if family == "normal" or (family == "uniform" and float(parameters[0]) <= 0):
                raise ValueError(
                    f"The hyperprior of the {name} must allow positive values only: give a "
                    "GammaPrior, or a UniformPrior with a positive lower bound."
                )
        if describe_prior(constant)[0] == "gamma":
            text = "The hyperprior of the constant mean must allow negative values"
            raise ValueError(f"{text}: give a NormalPrior or a UniformPrior.")
        priors = {"constant": constant, **positive}
        return cls("universal", kernel, priors, outcome_scale=outcome_scale)

    @classmethod
    def _content_and_options(
        cls, source_data: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        options = dict(options)
        transform = options.pop("input_transform", None)
        if isinstance(source_data, Sequence) and any(isinstance(d, Domain) for d in source_data):
            return source_data, options
        # A single domain does not determine how lengthscales depend on contexts.
        domain = Domain(source_data, name="source data", input_transform=transform)
        return [domain], {"kind": "universal", **options}

    # -------------------------------------------------------------------------- distributions

    @property
    def estimates(self) -> DomainEstimates | None:
        """GP hyperparameters that were estimated for each domain.

        ``None`` if the hyperprior was not learned from domains.
        """
        if not self.task_names:
            return None
        buffers = dict(self.named_buffers(recurse=False))
        tensors = {n.removeprefix(_ESTIMATES): t for n, t in buffers.items() if _ESTIMATES in n}
        return DomainEstimates(self.task_names, **tensors)

    @property
    def priors(self) -> dict[str, Prior]:
        """GPyTorch priors by name: ``"constant"``, ``"outputscale"``, ``"noise"``.

        Without a network, the result also contains ``"lengthscale"``, the prior of each
        lengthscale. Each access builds new priors.
        """
        parts = {name: getattr(self, f"{name}_parameters") for name in self.families}
        return {name: make_prior(self.families[name], part) for name, part in parts.items()}

    def lengthscale_prior(self, dim: int, context: Tensor | None = None) -> Prior:
        """Builds the hyperprior of a target's lengthscales.

        Args:
            dim: The target's number of inputs ``d``.
            context: A ``d x s`` tensor that describes the inputs. By default, all inputs count as
                continuous. Only a hyperprior of kind ``"mphd"`` uses the context.

        Returns:
            A new GPyTorch prior. For kind ``"mphd"``, it is a joint prior of ``d`` independent
            lengthscales, otherwise a univariate prior of each lengthscale.

        Raises:
            InputDataError: If the context has the wrong shape; or if ``context`` is omitted, but
                the network was trained on the domains' own contexts.
        """
        network = self.network
        if context is not None:
            shape = dim, (context if network is None else network.contexts).shape[-1]
            if context.shape != shape:
                raise InputDataError(
                    f"The context has shape {tuple(context.shape)}, but the target has {dim} "
                    f"inputs, which need {shape[1]} numbers each: give a tensor of shape {shape}."
                )
        if network is None:
            return self.priors["lengthscale"]
        if context is None:
            if not self.default_contexts:
                raise InputDataError(
                    "The hyperprior was trained on the domains' own contexts, so it needs the "
                    "target's context: give context=, a d x s tensor of s features for each input."
                )
            context = default_context(dim)
        return network.prior(context)

    def sample(
        self, num: int, dim: int, context: Tensor | None = None, seed: int = 0
    ) -> HyperparameterDraws:
        """Draws samples of the hyperparameters of a GP.

        Args:
            num: The number of samples ``R``.
            dim: The target's number of inputs ``d``.
            context: As in :meth:`lengthscale_prior`.
            seed: The seed.

        Returns:
            The samples, in double precision. A sample from an empirical hyperprior consists of
            estimates. The constant mean, signal variance and noise variance come from one random
            domain. Each lengthscale comes from a random input, drawn from all domains' inputs.

        Example:
            >>> from gpytorch.priors import GammaPrior, NormalPrior
            >>> positive = GammaPrior(2.0, 4.0)
            >>> constant = NormalPrior(0.0, 1.0)
            >>> hyperprior = Hyperprior.specified(constant, positive, positive, positive)
            >>> hyperprior.sample(100, dim=3).lengthscale.shape
            torch.Size([100, 3])
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if self.kind == "empirical":
                estimates = cast(DomainEstimates, self.estimates)
                domain = torch.randint(len(estimates.names), (num,))
                inputs = torch.randint(len(estimates.lengthscale), (num, dim))
                draws = {name: getattr(estimates, name).cpu()[domain] for name in _SHARED}
                draws["lengthscale"] = estimates.lengthscale.cpu()[inputs]
            else:
                lengthscale = self.lengthscale_prior(dim, context).cpu().double()
                priors = {name: self.priors[name].cpu().double() for name in _SHARED}
                draws = {name: prior.sample(torch.Size([num])) for name, prior in priors.items()}
                # MPHD's hyperprior draws all lengthscales at once.
                drawn = [num] if len(lengthscale._extended_shape()) else [num, dim]
                draws["lengthscale"] = lengthscale.sample(torch.Size(drawn))
        return HyperparameterDraws(**draws).to(self.constant_parameters.double())

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Builds the outcome transform that brings a target's outcomes into the hyperprior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the units are raw. Otherwise a standardization by the target's own outcomes,
            because each source task was standardized by itself. If the target has too few outcomes,
            typical moments of the source tasks are used instead.
        """
        if self.outcome_scale == "raw":
            return None
        typical = self.constant_parameters.new_tensor([0.0, 1.0])
        if (estimates := self.estimates) is not None:
            mean, std = estimates.outcome_mean, estimates.outcome_std
            typical = torch.stack([mean.mean(), std.square().mean().sqrt()])
        return PooledStandardize(OutcomeMoments(0, *typical), batch_shape=batch_shape)

    def extra_repr(self) -> str:
        """Returns the description of the hyperprior that ``print`` shows."""
        return (
            f"kind={self.kind!r}, kernel={self.kernel!r}, domains={len(self.task_names)}, "
            f"outcome_scale={self.outcome_scale!r}"
        )

    def input_transform_for(self, dim: int, given: InputTransform | None) -> InputTransform | None:
        """Chooses the input transform of a model that uses this hyperprior.

        Args:
            dim: The number of the model's inputs.
            given: The model's own ``input_transform``, which takes precedence.

        Returns:
            ``given``, if it is not ``None``. Otherwise a copy of the domains' common transform. The
            result is ``None`` if the domains have no common transform, or if the common transform
            does not fit ``dim`` inputs.

        Raises:
            ValueError: If ``given`` is not frozen.
        """
        if given is not None:
            return as_learned(given, self.input_transform)
        shared = self.input_transform
        return deepcopy(shared) if shared is not None and fits_dim(shared, dim) else None


def check_domains(domains: Sequence[Domain]) -> None:
    """Checks that all domains have contexts of their own, or that none has.

    Also checks that all contexts have the same number of features.

    Args:
        domains: The domains.

    Raises:
        InputDataError: If there are no domains, if the numbers of features differ, or if only some
            domains have contexts of their own.
    """
    are_domains = isinstance(domains, Sequence) and all(isinstance(d, Domain) for d in domains)
    if not are_domains or len(domains) == 0:
        raise InputDataError(
            "domains= is not a list of one or more Domain objects: build a domain for each search "
            "space by Domain(source_data), and put a single domain into a list."
        )
    kinds = {(d.has_default_context, cast(Tensor, d.context).shape[-1]) for d in domains}
    if len(kinds) > 1:
        text = "The domains' contexts differ in size, or only some domains have contexts"
        raise InputDataError(f"{text}: give contexts of one size for all domains, or no contexts.")


# ---------------------------------------------------------------------------- predictive metric


def hierarchical_negative_log_likelihood(
    hyperprior: Hyperprior,
    tasks: Sequence[SourceData] | Mapping[str, SourceData],
    context: Tensor | None = None,
    num_samples: int = 500,
    seed: int = 0,
) -> Tensor:
    r"""Estimates each task's ``-log p(D)`` under a hyperprior; ``D`` are all outcomes of the task.

    Use these values to compare hyperpriors on tasks that were not used for learning; lower is
    better. The papers on HyperBO+ and MPHD report this metric. The estimate is
    ``-log mean_q p(D | θ_q)`` over draws ``θ_q`` from the hyperprior. It is Eq. 2 of
    [Fan2022hyperboplus]_ without the factor ``p(θ_q)``, which would count the hyperprior twice.

    Args:
        hyperprior: The hyperprior.
        tasks: The tasks, each a ``SupervisedDataset`` or tensors ``X`` (``n x d``, in the unit
            cube), ``Y`` (``n x 1``) and optionally ``Yvar``. The outcomes must be standardized,
            unless the hyperprior's ``outcome_scale`` is ``"raw"``.
        context: A ``d x s`` tensor that describes the inputs, as in
            :meth:`Hyperprior.lengthscale_prior`.
        num_samples: The number of hyperparameter samples ``θ_q``, which are the same for all tasks.
        seed: The seed of the draws.

    Returns:
        A tensor with the value of each task, in double precision.

    Raises:
        InputDataError: If the tasks are invalid; the message names the task.
        ValueError: If ``num_samples`` is not positive.

    Example:
        >>> from gpytorch.priors import GammaPrior, NormalPrior
        >>> positive = GammaPrior(2.0, 4.0)
        >>> constant = NormalPrior(0.0, 1.0)
        >>> hyperprior = Hyperprior.specified(constant, positive, positive, positive)
        >>> X = torch.rand(10, 3, dtype=torch.double)
        >>> task = (X, X.sum(-1, keepdim=True) - 1.5)
        >>> hierarchical_negative_log_likelihood(hyperprior, [task]).shape
        torch.Size([1])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} must be positive.")
    datasets = as_datasets(tasks)
    draws = hyperprior.sample(num_samples, datasets[0].X.shape[-1], context, seed)
    values = []
    for data in datasets:
        Yvar = None if data.Yvar is None else data.Yvar.squeeze(-1)
        found = log_likelihoods(draws, data.X, data.Y.squeeze(-1), Yvar, hyperprior.kernel)
        values.append(math.log(num_samples) - found.logsumexp(dim=0))
    return torch.stack(values)
