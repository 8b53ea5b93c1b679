"""What the tests of all models share."""

from pathlib import Path

import pytest
from botorch.exceptions.warnings import BotorchWarning
from gpytorch.utils.warnings import GPInputWarning
from linear_operator.utils.warnings import NumericalWarning

from tests.devices import DEVICE, FAILING
from tests.models.contract import INEXACT, KINDS, REPRESENTATIVES, ModelCase

# What a user would see, and could do nothing about.
UNWANTED = (BotorchWarning, GPInputWarning, NumericalWarning, DeprecationWarning, UserWarning)


# What a case has to join that differs from another one by its fit alone.
FIT_TESTS = {
    f"test_contract_{part}" for part in ("batches", "device", "few_points", "fitting", "state")
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselected = [item for item in items if _is_not_for_its_model(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        left = set(deselected)
        items[:] = [item for item in items if item not in left]
    own = {path for path in {item.path for item in items} if Path(__file__).parent in path.parents}
    for item in items:
        if item.path in own:
            if DEVICE != "cpu" and item.originalname in FAILING:
                item.add_marker(pytest.mark.xfail(reason=FAILING[item.originalname], strict=True))
            for category in UNWANTED:
                name = f"{category.__module__}.{category.__qualname__}"
                # Put first: a test's own marks, further down, come later and win.
                item.add_marker(pytest.mark.filterwarnings(f"error::{name}"), append=False)


def _is_not_for_its_model(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
    if not isinstance(case, ModelCase):
        return False
    if case.fit_only and item.path.stem not in FIT_TESTS:
        return True
    return case.ensemble and item.get_closest_marker("gaussian") is not None


@pytest.fixture(params=KINDS, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ModelCase:
    """Every model under the contract but siblings, one after another."""
    return request.param


@pytest.fixture(params=INEXACT, ids=lambda case: case.name)
def inexact(request: pytest.FixtureRequest) -> ModelCase:
    """One model of each kind whose predictions are not those of its exact GP."""
    return request.param


@pytest.fixture(params=REPRESENTATIVES, ids=lambda case: case.name)
def representative(request: pytest.FixtureRequest) -> ModelCase:
    """One model of each kind, for tests of many combinations that do not depend on the model."""
    return request.param
