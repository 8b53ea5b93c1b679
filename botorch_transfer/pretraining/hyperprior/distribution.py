"""Hyperparameters drawn from a hyperprior.

What step 1 of pre-training a hyperprior finds: the hyperparameters of each domain's GP.

Checks of what hyperpriors are learned from, and asked about.

What a hyperprior is: distributions of a GP's hyperparameters, to ask, draw from and save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import fields as dataclass_fields
from typing import Any, Literal, Self

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.priors import Prior
from pandas import DataFrame
from torch import Tensor

from botorch_transfer.data import Domain, default_context
from botorch_transfer.hyperpriors.priors import describe_prior, make_prior
from botorch_transfer.kernels.stationary import stationary_function
from botorch_transfer.outcome_transforms import OwnStandardize
from botorch_transfer.pretraining.hyperprior.network import (
    ContextGammaPrior,
    ContextNetwork,
)
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.tasks import OutcomeScale


@dataclass(frozen=True)
class HyperparameterDraws:
    """``R`` draws of the hyperparameters of a GP with ``d`` inputs.

    Args:
        constant: An ``R`` tensor of constant means.
        lengthscale: An ``R x d`` tensor.
        outputscale: An ``R`` tensor of signal variances.
        noise: An ``R`` tensor of noise variances.
    """

    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor

    def __len__(self) -> int:
        return len(self.constant)

    def __getitem__(self, index: Any) -> HyperparameterDraws:
        """Selects draws."""
        return HyperparameterDraws(*(getattr(self, part.name)[index] for part in fields(self)))

    def to(self, other: Tensor) -> HyperparameterDraws:
        """The same draws in the dtype and on the device of a tensor."""
        return HyperparameterDraws(*(getattr(self, part.name).to(other) for part in fields(self)))


@dataclass(frozen=True)
class DomainEstimates:
    """Penalized maximum likelihood estimates of ``N`` domains with ``D`` inputs in all.

    Outcomes are in the units in which the domains were fitted.

    Args:
        names: The domains' names.
        constant: An ``N`` tensor of constant means.
        lengthscale: A ``D`` tensor: the lengthscales of all domains, one domain after another.
        outputscale: An ``N`` tensor of signal variances.
        noise: An ``N`` tensor of noise variances.
        dims: An ``N`` tensor of integers: each domain's number of inputs.
        context: A ``D x s`` tensor: the context of each input.
        log_likelihood: An ``N`` tensor, summed over tasks, before the noise is raised to its least
            value; NaN after a fit by sub-samples.
        outcome_mean: An ``N`` tensor: the mean of the tasks' mean outcomes, in the user's units.
        outcome_std: An ``N`` tensor: the root mean square of the tasks' outcome deviations.
    """

    names: tuple[str, ...]
    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    dims: Tensor
    context: Tensor
    log_likelihood: Tensor
    outcome_mean: Tensor
    outcome_std: Tensor

    @classmethod
    def from_tensors(cls, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Self:
        """Builds estimates of the tensors that :meth:`tensors` gave."""
        return cls(names=tuple(names), **tensors)

    def tensors(self) -> dict[str, Tensor]:
        """All fields but the names, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "names"}

    @property
    def domain_of_input(self) -> Tensor:
        """A ``D`` tensor: the number of the domain that each lengthscale is of."""
        domains = torch.arange(len(self.dims), device=self.dims.device)
        return domains.repeat_interleave(self.dims)

    def select(self, indices: Sequence[int]) -> DomainEstimates:
        """The estimates of some of the domains.

        Args:
            indices: The domains' numbers, in ascending order.

        Returns:
            Their estimates.
        """
        domains = torch.as_tensor(indices, dtype=torch.long, device=self.dims.device)
        inputs = torch.isin(self.domain_of_input, domains)
        per_input = {"lengthscale", "context"}
        return type(self).from_tensors(
            [self.names[index] for index in indices],
            {
                name: tensor[inputs] if name in per_input else tensor[domains]
                for name, tensor in self.tensors().items()
            },
        )

    def to_frame(self) -> DataFrame:
        """A table to look at: one row an input, what belongs to the domain repeated."""
        domain = self.domain_of_input
        position = torch.cat([torch.arange(size) for size in self.dims.tolist()])
        rows = {
            "domain": [self.names[index] for index in domain.tolist()],
            "input": position.tolist(),
            "lengthscale": self.lengthscale.tolist(),
        }
        for name in ("constant", "outputscale", "noise", "log_likelihood"):
            rows[name] = getattr(self, name)[domain].tolist()
        for column, values in enumerate(self.context.mT.tolist()):
            rows[f"context {column}"] = values
        return DataFrame(rows)


def are_domains(source_data: Any) -> bool:
    """Whether something is a sequence of domains, and not of source tasks."""
    return isinstance(source_data, Sequence) and any(
        isinstance(part, Domain) for part in source_data
    )


def check_domains(domains: Sequence[Domain]) -> list[Domain]:
    """Checks that a hyperprior can be learned from domains.

    Args:
        domains: The domains.

    Returns:
        A list of them.

    Raises:
        InputDataError: If there are none, two have one name, or their contexts differ in kind.
    """
    if isinstance(domains, Domain) or not isinstance(domains, Sequence):
        raise InputDataError("Expected a sequence of domains: put a single one into a list.")
    if not domains:
        raise InputDataError("There are no domains: pass at least one.")
    for domain in domains:
        if not isinstance(domain, Domain):
            raise InputDataError(
                f"Expected domains, not a {type(domain).__name__}: make one of each search space "
                "by Domain(source_data)."
            )
    given = [domain.name for domain in domains if domain.name is not None]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise InputDataError(f"Two domains have the name {twice!r}: rename one.")
    sizes = {domain.context.shape[-1] for domain in domains if domain.context is not None}
    defaults = {domain.has_default_context for domain in domains}
    if len(sizes) > 1 or len(defaults) > 1:
        raise InputDataError(
            "The domains' contexts are of different kinds: give all of them contexts of the same "
            "size, or none."
        )
    return list(domains)


def check_rows(context: Tensor | None, dim: int) -> None:
    """Checks that a target's context, if there is one, has a row for each input."""
    if context is not None and (context.ndim != 2 or len(context) != dim):
        raise InputDataError(
            f"The context is {tuple(context.shape)}, but the target has {dim} inputs: it must be "
            "d x s, with a row for each."
        )


def find_domain(names: Sequence[str], domain: str | int) -> int:
    """Finds the number of a domain that is given by its name or number."""
    if isinstance(domain, str) and domain in names:
        return list(names).index(domain)
    if isinstance(domain, int) and 0 <= domain < len(names):
        return domain
    raise ValueError(f"There is no domain {domain!r} among {', '.join(map(repr, names))}.")


Kind = Literal["mphd", "universal", "empirical"]

_SHARED = ("constant", "outputscale", "noise")
_NETWORK = "network."
_ESTIMATES = "estimates_"


class HyperparameterDistribution(TransferPrior):
    r"""The distribution behind a :class:`Hyperprior`: everything but how one is learned.

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
    """

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
