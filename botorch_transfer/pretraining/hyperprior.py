r"""HyperBO+ and MPHD: a distribution over hyperparameters, learned from other search spaces.

.. [Fan2022hyperboplus]
    Z. Fan, X. Han and Z. Wang. HyperBO+: Pre-training a universal prior for Bayesian optimization
    with hierarchical Gaussian processes. 2022. arXiv:2212.10538.

.. [Fan2024mphd]
    Z. Fan, X. Han and Z. Wang. Transfer Learning for Bayesian Optimization on Heterogeneous Search
    Spaces. TMLR 2024. arXiv:2309.16597.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.priors import GammaPrior, NormalPrior, Prior
from torch import Tensor

from botorch_transfer.data import Domain, SourceData, default_context
from botorch_transfer.hyperpriors.context_gamma import ContextGammaPrior
from botorch_transfer.hyperpriors.context_network import ContextNetwork
from botorch_transfer.hyperpriors.draws import HyperparameterDraws
from botorch_transfer.hyperpriors.estimates import DomainEstimates
from botorch_transfer.hyperpriors.families import describe_prior, make_prior
from botorch_transfer.hyperpriors.maximum_likelihood import fit_gamma, fit_normal
from botorch_transfer.kernels.stationary import stationary_function
from botorch_transfer.outcome_transforms import OwnStandardize
from botorch_transfer.pretraining.domain_checks import (
    are_domains,
    check_domains,
    check_rows,
    find_domain,
)
from botorch_transfer.pretraining.domain_fit import DomainFitOptions, fit_domains
from botorch_transfer.pretraining.input_transforms import shared_transform
from botorch_transfer.pretraining.memo import Memo, content_key
from botorch_transfer.pretraining.network_fit import NetworkOptions, fit_network
from botorch_transfer.pretraining.outcome_scale import OutcomeScale
from botorch_transfer.pretraining.prior import TransferPrior

Kind = Literal["mphd", "universal", "empirical"]

_SHARED = ("constant", "outputscale", "noise")
_NETWORK = "network."
_ESTIMATES = "estimates_"
_HOW = {"progress", "n_jobs", "max_bytes", "chunk_elements"}


class Hyperprior(TransferPrior):
    r"""A distribution over the hyperparameters of a GP: the prior of MPHD and HyperBO+.

    It is the only kind of prior here that transfers between search spaces of different dimension
    and meaning: what is learned is how long lengthscales, how large signal and noise variances tend
    to be. Every domain (search space) has one GP that its tasks are draws of, with a constant mean
    and a Matérn kernel with a lengthscale for each input. Step 1 estimates these hyperparameters
    domain by domain; step 2 fits distributions to the estimates: a Normal to the means, Gammas to
    the rest. Use it with half a dozen domains or more; the source observations are not kept, and a
    saved file does not contain them.

    Build one by :meth:`fit` or :meth:`specified`, not by the constructor.

    Args:
        kind: ``"mphd"``: each lengthscale's Gamma distribution is what a network says of its
            context; ``"universal"``: one Gamma for all lengthscales (HyperBO+); ``"empirical"``:
            no distributions, but the set of estimates itself (\*HyperBO+).
        kernel: The stationary kernel's name.
        priors: The hyperpriors of ``"constant"``, ``"outputscale"``, ``"noise"`` and, unless there
            is a network, ``"lengthscale"``, for a copy of their parameters.
        network: MPHD's network.
        estimates: What step 1 found.
        default_contexts: Whether the network was trained on MPHD's own contexts.
        outcome_scale: The units of the outcomes: ``"per_task"`` or ``"raw"``.
        input_transform: The transform that all domains share, if they do.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> lab = Domain([(X, X.sum(-1, keepdim=True)), (X, X.prod(-1, keepdim=True))], name="lab")
        >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
        >>> hyperprior = Hyperprior.fit([lab, shop], kind="universal")
        >>> hyperprior.lengthscale_prior(dim=5)
        GammaPrior()
    """

    _pretrained: ClassVar[Memo] = Memo(size=8)

    constant_parameters: Tensor
    lengthscale_parameters: Tensor
    noise_parameters: Tensor
    estimates_outcome_mean: Tensor
    estimates_outcome_std: Tensor
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
    ) -> None:
        super().__init__(outcome_scale, input_transform)
        stationary_function(kernel)
        self.kind, self.kernel = kind, kernel
        self.default_contexts = default_contexts
        self.families: dict[str, str] = {}
        for name, prior in priors.items():
            self.families[name], parameters = describe_prior(prior)
            self.register_buffer(f"{name}_parameters", parameters.double())
        self.network = network
        self.domain_names = None if estimates is None else estimates.names
        for name, tensor in ({} if estimates is None else estimates.tensors()).items():
            self.register_buffer(f"{_ESTIMATES}{name}", tensor)

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
        """Learns a hyperprior from domains, in the two steps of [Fan2024mphd]_.

        Args:
            domains: The domains, each with its source tasks.
            kind: ``"mphd"``, ``"universal"`` or ``"empirical"``.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``; by default that of
                the method's paper, Matérn 5/2 for MPHD and Matérn 3/2 for the others.
            outcome_scale: Whether to standardize the outcomes of each task by itself
                (``"per_task"``), which domains of different units need, or to take them as they
                are (``"raw"``), as the papers do.
            network: How to make and train MPHD's network.
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
        _check_kind(kind)
        domains = check_domains(domains)
        kernel = kernel or ("matern52" if kind == "mphd" else "matern32")
        if outcome_scale == "pooled":
            raise ValueError(
                "A Hyperprior has the outcome_scale 'per_task' or 'raw': domains of different "
                "units have no common scale."
            )
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
            constant: The hyperprior of the constant mean; it and the others are univariate
                ``GammaPrior``, ``NormalPrior`` or ``UniformPrior``.
            lengthscale: That of each lengthscale.
            outputscale: That of the signal variance.
            noise: That of the noise variance.
            kernel: The stationary kernel's name.
            outcome_scale: The units that are meant; ``"per_task"`` says standardized outcomes.

        Returns:
            The hyperprior, for any number of inputs.

        Raises:
            ValueError: If a distribution is of another kind, or may be negative where it must not.

        Example:
            >>> from gpytorch.priors import GammaPrior, NormalPrior
            >>> noise = GammaPrior(1.0, 100.0)
            >>> positive = GammaPrior(2.0, 4.0)
            >>> hyperprior = Hyperprior.specified(NormalPrior(0.0, 1.0), positive, positive, noise)
        """
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
        return cls("universal", kernel, priors, outcome_scale=outcome_scale)

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
        _check_kind(kind)
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

    @property
    def dim(self) -> int | None:
        """``None``: a hyperprior serves any number of inputs."""
        return None

    @property
    def estimates(self) -> DomainEstimates:
        """What step 1 found.

        Raises:
            ValueError: If the hyperprior was specified by hand.
        """
        if self.domain_names is None:
            raise ValueError("This hyperprior was specified by hand: there are no estimates.")
        names = [part.name for part in dataclass_fields(DomainEstimates) if part.name != "names"]
        tensors = {name: getattr(self, f"{_ESTIMATES}{name}") for name in names}
        return DomainEstimates.from_tensors(self.domain_names, tensors)

    def hyperprior_of(self, name: str) -> Prior:
        """Builds the hyperprior of a hyperparameter that does not depend on the inputs.

        Args:
            name: ``"constant"``, ``"outputscale"`` or ``"noise"``.

        Returns:
            A new GPyTorch prior.
        """
        return make_prior(self.families[name], getattr(self, f"{name}_parameters"))

    def lengthscale_prior(self, dim: int, context: Tensor | None = None) -> Prior:
        """Builds the hyperprior of the lengthscales of a target.

        Args:
            dim: The target's number of inputs ``d``.
            context: A ``d x s`` tensor that describes the inputs; by default that of ``d``
                continuous inputs. Only MPHD looks at it.

        Returns:
            A new GPyTorch prior: of each lengthscale, or of all ``d`` together if contexts matter.

        Raises:
            InputDataError: If the context is of another shape, or needed and not given.
        """
        if self.network is None:
            check_rows(context, dim)
            return make_prior(self.families["lengthscale"], self.lengthscale_parameters)
        return ContextGammaPrior(self.network, self.resolve_context(dim, context))

    def resolve_context(self, dim: int, context: Tensor | None) -> Tensor:
        """Checks a target's context, or makes the default one."""
        if context is None:
            if not self.default_contexts:
                raise InputDataError(
                    "The hyperprior was trained on contexts of the domains' own: give the target's "
                    "as context=, a d x s tensor."
                )
            return default_context(dim)
        check_rows(context, dim)
        return context

    def sample(
        self, num: int, dim: int, context: Tensor | None = None, seed: int = 0
    ) -> HyperparameterDraws:
        """Draws hyperparameters.

        Args:
            num: The number of draws ``R``.
            dim: The target's number of inputs ``d``.
            context: As in :meth:`lengthscale_prior`.
            seed: The seed.

        Returns:
            The draws, in double precision. Of an empirical hyperprior, mean and variances are those
            of one domain, and each lengthscale is one of all domains'.

        Example:
            >>> from gpytorch.priors import GammaPrior, NormalPrior
            >>> positive = GammaPrior(2.0, 4.0)
            >>> constant = NormalPrior(0.0, 1.0)
            >>> hyperprior = Hyperprior.specified(constant, positive, positive, positive)
            >>> hyperprior.sample(100, dim=3).lengthscale.shape
            torch.Size([100, 3])
        """
        device = self.constant_parameters.device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            draws = self._sample(num, dim, context)
        return draws.to(torch.empty(0, dtype=torch.double, device=device))

    def _sample(self, num: int, dim: int, context: Tensor | None) -> HyperparameterDraws:
        if self.kind == "empirical":
            estimates = self.estimates
            domain = torch.randint(len(estimates.names), (num,))
            inputs = torch.randint(len(estimates.lengthscale), (num, dim))
            shared = {name: getattr(estimates, name).cpu()[domain] for name in _SHARED}
            return HyperparameterDraws(lengthscale=estimates.lengthscale.cpu()[inputs], **shared)
        prior = self.lengthscale_prior(dim, context).cpu().double()
        shape = torch.Size([num]) if len(prior._extended_shape()) else torch.Size([num, dim])
        shared = {
            name: self.hyperprior_of(name).cpu().double().sample(torch.Size([num]))
            for name in _SHARED
        }
        return HyperparameterDraws(lengthscale=prior.sample(shape), **shared)

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """The outcome transform that brings a target's outcomes into the hyperprior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the hyperprior speaks in raw units. Otherwise a standardization by the
            target's own outcomes, as each source task was standardized by itself; where the target
            has too few for that, by what is typical of the source tasks.
        """
        if self.outcome_scale == "raw":
            return None
        if self.domain_names is None:
            typical = self.constant_parameters.new_tensor([0.0, 1.0])
        else:
            mean, std = self.estimates_outcome_mean, self.estimates_outcome_std
            typical = torch.stack([mean.mean(), std.square().mean().sqrt()])
        return OwnStandardize(typical[0], typical[1], batch_shape=batch_shape)

    def extra_repr(self) -> str:
        """What ``print`` shows of the hyperprior."""
        domains = 0 if self.domain_names is None else len(self.domain_names)
        return (
            f"kind={self.kind!r}, kernel={self.kernel!r}, domains={domains}, "
            f"outcome_scale={self.outcome_scale!r}"
        )

    def _config(self) -> dict[str, Any]:
        network = self.network
        return {
            "kind": self.kind,
            "kernel": self.kernel,
            "families": self.families,
            "domain_names": None if self.domain_names is None else list(self.domain_names),
            "default_contexts": self.default_contexts,
            "network": None
            if network is None
            else {"hidden": list(network.hidden), "bounded_head": network.bounded_head},
        }

    def _tensors(self) -> dict[str, Tensor]:
        return {
            name: tensor
            for name, tensor in self.state_dict().items()
            if not name.startswith("input_transform.")
        }

    @classmethod
    def _restore(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        input_transform: InputTransform | None,
    ) -> Self:
        priors = {
            name: make_prior(family, tensors[f"{name}_parameters"])
            for name, family in config["families"].items()
        }
        names, estimates = config["domain_names"], None
        if names is not None:
            parts = {
                name.removeprefix(_ESTIMATES): tensor
                for name, tensor in tensors.items()
                if name.startswith(_ESTIMATES)
            }
            estimates = DomainEstimates.from_tensors(names, parts)
        network = None
        if config["network"] is not None:
            state = {
                name.removeprefix(_NETWORK): tensor
                for name, tensor in tensors.items()
                if name.startswith(_NETWORK)
            }
            contexts, base = state["offset"].unsqueeze(0), state["base"]
            network = ContextNetwork(contexts, base, **config["network"]).freeze()
            network.load_state_dict(state)
        return cls(
            config["kind"],
            config["kernel"],
            priors,
            network,
            estimates,
            config["default_contexts"],
            config["outcome_scale"],
            input_transform,
        )


def _check_kind(kind: str) -> None:
    if kind not in get_args(Kind):
        names = ", ".join(repr(name) for name in get_args(Kind))
        raise ValueError(f"Unknown kind {kind!r}: choose one of {names}.")
