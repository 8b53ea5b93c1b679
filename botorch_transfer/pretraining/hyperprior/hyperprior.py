"""HyperBO+ and MPHD: a distribution over hyperparameters, learned from other search spaces.

.. [Fan2022hyperboplus]
    Z. Fan, X. Han and Z. Wang. HyperBO+: Pre-training a universal prior for Bayesian optimization
    with hierarchical Gaussian processes. 2022. arXiv:2212.10538.

.. [Fan2024mphd]
    Z. Fan, X. Han and Z. Wang. Transfer Learning for Bayesian Optimization on Heterogeneous Search
    Spaces. TMLR 2024. arXiv:2309.16597.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self, get_args

from botorch.models.transforms.input import InputTransform
from gpytorch.priors import GammaPrior, NormalPrior, Prior

from botorch_transfer.data import Domain, SourceData
from botorch_transfer.hyperpriors.priors import describe_prior, fit_gamma, fit_normal
from botorch_transfer.pretraining.hyperprior.distribution import (
    DomainEstimates,
    HyperparameterDistribution,
    Kind,
    are_domains,
    check_domains,
    find_domain,
)
from botorch_transfer.pretraining.hyperprior.domain_fit import (
    DomainFitOptions,
    fit_domains,
)
from botorch_transfer.pretraining.hyperprior.network import NetworkOptions, fit_network
from botorch_transfer.pretraining.input_transforms import (
    frozen_input_transform,
    shared_transform,
    takes,
)
from botorch_transfer.pretraining.memo import Memo, content_key
from botorch_transfer.pretraining.tasks import OutcomeScale

_HOW = {"progress", "n_jobs", "max_bytes", "chunk_elements"}


class Hyperprior(HyperparameterDistribution):
    r"""A distribution over the hyperparameters of a GP: the prior of MPHD and HyperBO+.

    It is the only kind of prior here that transfers between search spaces of different dimension
    and meaning: what is learned is how long lengthscales, how large signal and noise variances tend
    to be. Every domain (search space) has one GP that its tasks are draws of, with a constant mean
    and a Matérn kernel with a lengthscale for each input. Step 1 estimates these hyperparameters
    domain by domain; step 2 fits distributions to the estimates: a Normal to the means, Gammas to
    the rest. Use it with half a dozen domains or more; the source observations are not kept, and a
    saved file does not contain them.

    Build one by :meth:`fit` or :meth:`specified`, not by the constructor.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> lab = Domain([(X, X.sum(-1, keepdim=True)), (X, X.prod(-1, keepdim=True))], name="lab")
        >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
        >>> hyperprior = Hyperprior.fit([lab, shop], kind="universal")
        >>> hyperprior.lengthscale_prior(dim=5)
        GammaPrior()
    """

    _pretrained: ClassVar[Memo] = Memo(size=8)

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
            kind: ``"mphd"``: each lengthscale's Gamma distribution is what a network says of its
                context; ``"universal"``: one Gamma for all lengthscales (HyperBO+);
                ``"empirical"``: no distributions, but the set of estimates itself (\*HyperBO+).
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``; by default that of
                the method's paper, Matérn 5/2 for MPHD and Matérn 3/2 for the others.
            outcome_scale: Whether to standardize the outcomes of each task by itself
                (``"per_task"``), which domains of different units need, or to take them as they
                are (``"raw"``), as the papers do.
            network: How to make and train MPHD's network; other kinds have none.
            **options: Those of step 1, see :class:`~.domain_fit.DomainFitOptions`.

        Returns:
            The hyperprior, in double precision on the CPU.

        Raises:
            InputDataError: If there are no domains, their contexts differ in size, or a domain is
                too large or never varies.
            ValueError: If an argument is unknown or out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> lab = Domain([(X, X.sum(-1, keepdim=True))], name="lab")
            >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
            >>> hyperprior = Hyperprior.fit([lab, shop], network=NetworkOptions(num_steps=10))
            >>> hyperprior.estimates.to_frame()
              domain  input ...
        """
        check_kind(kind)
        domains = check_domains(domains)
        kernel = kernel or ("matern52" if kind == "mphd" else "matern32")
        _check_units(outcome_scale)
        estimates = fit_domains(domains, kernel, outcome_scale, DomainFitOptions(**options))
        return cls._from_estimates(
            estimates,
            kind,
            kernel,
            network,
            default_contexts=all(domain.has_default_context for domain in domains),
            outcome_scale=outcome_scale,
            input_transform=shared_transform([domain.input_transform for domain in domains]),
        )

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
        """Makes a hyperprior of distributions that are known, or chosen by hand.

        Args:
            constant: The hyperprior of the constant mean, a ``NormalPrior`` or ``UniformPrior``.
            lengthscale: That of each lengthscale; it and the others are univariate, a
                ``GammaPrior`` or ``UniformPrior``.
            outputscale: That of the signal variance.
            noise: That of the noise variance.
            kernel: The stationary kernel's name.
            outcome_scale: The units that are meant; ``"per_task"`` says standardized outcomes.

        Returns:
            The hyperprior, for any number of inputs.

        Raises:
            ValueError: If a distribution is of another kind, or may be negative where it must not,
                or must be positive for the constant, or there are no such kernel or units.

        Example:
            >>> from gpytorch.priors import GammaPrior, NormalPrior
            >>> noise = GammaPrior(1.0, 100.0)
            >>> positive = GammaPrior(2.0, 4.0)
            >>> hyperprior = Hyperprior.specified(NormalPrior(0.0, 1.0), positive, positive, noise)
        """
        _check_units(outcome_scale)
        priors = {
            "constant": constant,
            "lengthscale": lengthscale,
            "outputscale": outputscale,
            "noise": noise,
        }
        for name, prior in priors.items():
            family, parameters = describe_prior(prior)
            negative = family == "normal" or (family == "uniform" and float(parameters[0]) <= 0)
            if name != "constant" and negative:
                raise ValueError(f"The hyperprior of the {name} must be on positive values only.")
            if name == "constant" and family == "gamma":
                raise ValueError(
                    "The hyperprior of the constant is a Gamma distribution, but a mean may be "
                    "negative: give a NormalPrior or UniformPrior."
                )
        return cls("universal", kernel, priors, outcome_scale=outcome_scale)

    def input_transform_for(self, dim: int, given: InputTransform | None) -> InputTransform | None:
        """Finds the input transform of a model, whose search space may be another one.

        Args:
            dim: The number of the model's inputs.
            given: The model's own argument, which wins.

        Returns:
            The argument; without one that of the domains, if they share one of as many inputs.

        Raises:
            ValueError: If the argument is not frozen.
        """
        if given is not None:
            return frozen_input_transform(given)
        shared = self.input_transform
        return deepcopy(shared) if shared is not None and takes(shared, dim) else None

    @classmethod
    def fit_once(
        cls,
        source_data: Sequence[Domain] | Sequence[SourceData] | Mapping[str, SourceData],
        input_transform: InputTransform | None = None,
        **kwargs: Any,
    ) -> Self:
        """Fits as :meth:`fit` does, or recalls the hyperprior that the same content gave before.

        Args:
            source_data: The domains; or the source tasks of one domain, which is then the only one.
            input_transform: The transform of such source tasks.
            **kwargs: The arguments of :meth:`fit`.

        Returns:
            The hyperprior; treat it as immutable, others may hold it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> domains = [Domain([(X, X.sum(-1, keepdim=True))])]
            >>> hyperprior = Hyperprior.fit_once(domains, kind="universal")
            >>> hyperprior is Hyperprior.fit_once(domains, kind="universal")
            True
        """
        if not are_domains(source_data):
            # One domain has nothing to tell about how contexts matter.
            kwargs = {"kind": "universal", **kwargs}
            source_data = [Domain(source_data, name="source data", input_transform=input_transform)]  # type: ignore[arg-type]
        what = {name: kwargs[name] for name in sorted(kwargs) if name not in _HOW}
        key = content_key(cls.__qualname__, source_data, what)
        return cls._pretrained.recall(key, lambda: cls.fit(source_data, **kwargs))  # type: ignore[arg-type]

    @classmethod
    def _from_estimates(
        cls,
        estimates: DomainEstimates,
        kind: Kind,
        kernel: str,
        network: NetworkOptions | None,
        **options: Any,
    ) -> Self:
        """Runs step 2."""
        broad = float(estimates.outputscale.mean().sqrt())
        gamma = {
            name: GammaPrior(*fit_gamma(getattr(estimates, name), name))
            for name in ("lengthscale", "outputscale", "noise")
        }
        priors: dict[str, Prior] = {
            "constant": NormalPrior(*fit_normal(estimates.constant, broad, "constant mean")),
            **gamma,
        }
        fitted = None
        if kind == "mphd":
            base = describe_prior(priors.pop("lengthscale"))[1]
            settings = network or NetworkOptions()
            fitted = fit_network(estimates.context, estimates.lengthscale, base, settings)
        return cls(kind, kernel, priors, fitted, estimates, **options)

    def refit(
        self,
        kind: Kind | None = None,
        without: str | int | Sequence[str | int] = (),
        network: NetworkOptions | None = None,
    ) -> Self:
        """Runs step 2 again on the estimates that step 1 left: another kind, or fewer domains.

        Args:
            kind: The kind wanted; that of this hyperprior if omitted.
            without: Names or numbers of domains to leave out, as in the papers' setting without
                data of the target's own domain (NToT).
            network: How to make and train MPHD's network.

        Returns:
            A new hyperprior; this one stays as it is. Its ``domain_names`` are those it learned
            from.

        Raises:
            ValueError: If this hyperprior has no estimates, there is no such domain, or none left.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> lab = Domain([(X, X.sum(-1, keepdim=True))], name="lab")
            >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
            >>> hyperprior = Hyperprior.fit([lab, shop], kind="universal")
            >>> hyperprior.refit(without="lab").domain_names
            ('shop',)
        """
        estimates = self.estimates
        left_out = {without} if isinstance(without, str | int) else set(without)
        numbers = {find_domain(estimates.names, domain) for domain in left_out}
        kept = [number for number in range(len(estimates.names)) if number not in numbers]
        if not kept:
            raise ValueError("No domain would be left to learn from.")
        kind = self.kind if kind is None else kind
        check_kind(kind)
        return (
            type(self)
            ._from_estimates(
                estimates.select(kept),
                kind,
                self.kernel,
                network,
                default_contexts=self.default_contexts,
                outcome_scale=self.outcome_scale,
                input_transform=self.input_transform,
            )
            .to(self.constant_parameters.device)
        )


def _check_units(outcome_scale: str) -> None:
    if outcome_scale == "pooled":
        raise ValueError(
            "A Hyperprior has the outcome_scale 'per_task' or 'raw': domains of different units "
            "have no common scale."
        )


def check_kind(kind: str) -> None:
    """Refuses kinds that there are not.

    Args:
        kind: The kind.

    Raises:
        ValueError: If there is no such kind.
    """
    if kind not in get_args(Kind):
        names = ", ".join(repr(name) for name in get_args(Kind))
        raise ValueError(f"Unknown kind {kind!r}: choose one of {names}.")
