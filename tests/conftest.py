"""Settings of all tests."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Registers the contract's marker, and loads PyTorch where tests run.

    With ``-n``, this process only hands them out.
    """
    config.addinivalue_line(
        "markers",
        "gaussian: of the contract that BoTorch's ensembles, with their mixtures, do not share",
    )
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.environment")
