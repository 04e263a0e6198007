"""A kit to fuzz partitioners and backends: random graphs, and checks that judge the result.

    from hypothesis import given, strategies as st
    from hierpart.testing import adapters, check_partitioner, example_inputs, graph_modules, options

    @given(st.data())
    def test_my_partitioner(data):
        gm = data.draw(graph_modules())
        check_partitioner(my_partition, gm, data.draw(example_inputs(gm)))

The strategies need Hypothesis (``pip install hierpart[testing]``); the checks,
:func:`random_graph_module` and the adapters do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hierpart.errors import MissingExtraError

if TYPE_CHECKING:
    from hierpart.testing import adapters as adapters
    from hierpart.testing.checks.backend.check import BackendCheck as BackendCheck
    from hierpart.testing.checks.backend.check import check_backend as check_backend
    from hierpart.testing.checks.backend.check import check_backend_on as check_backend_on
    from hierpart.testing.checks.backend.rules import BACKEND_RULES as BACKEND_RULES
    from hierpart.testing.checks.backend.rules import BackendViolation as BackendViolation
    from hierpart.testing.checks.partition import check_deterministic as check_deterministic
    from hierpart.testing.checks.partition import check_equal as check_equal
    from hierpart.testing.checks.partition import check_partition as check_partition
    from hierpart.testing.checks.partition import check_partitioner as check_partitioner
    from hierpart.testing.checks.plan import check_plan as check_plan
    from hierpart.testing.contract import CONTRACT as CONTRACT
    from hierpart.testing.contract import ContractViolation as ContractViolation
    from hierpart.testing.generate.features import FEATURES as FEATURES
    from hierpart.testing.generate.features import FUNCTIONAL as FUNCTIONAL
    from hierpart.testing.generate.graphs import inputs_for as inputs_for
    from hierpart.testing.generate.graphs import random_graph_module as random_graph_module
    from hierpart.testing.generate.metadata import annotate as annotate
    from hierpart.testing.generate.reproduce import reproduction as reproduction
    from hierpart.testing.generate.strategies import example_inputs as example_inputs
    from hierpart.testing.generate.strategies import graph_modules as graph_modules
    from hierpart.testing.generate.strategies import options as options
    from hierpart.testing.generate.strategies import priorities as priorities
    from hierpart.testing.generate.strategies import support_maps as support_maps
    from hierpart.testing.reading.snapshot import describe as describe

_HOMES = {
    "checks.backend.rules": ("BACKEND_RULES", "BackendViolation"),
    "checks.backend.check": ("BackendCheck", "check_backend", "check_backend_on"),
    "generate.metadata": ("annotate",),
    "checks.partition": (
        "check_deterministic",
        "check_equal",
        "check_partition",
        "check_partitioner",
    ),
    "contract": ("CONTRACT", "ContractViolation"),
    "generate.features": ("FEATURES", "FUNCTIONAL"),
    "generate.graphs": ("inputs_for", "random_graph_module"),
    "checks.plan": ("check_plan",),
    "generate.reproduce": ("reproduction",),
    "reading.snapshot": ("describe",),
    "generate.strategies": (
        "example_inputs",
        "graph_modules",
        "options",
        "priorities",
        "support_maps",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "adapters"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "adapters":
        return importlib.import_module("hierpart.testing.adapters")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise MissingExtraError(f"hierpart.testing.{name}", "hypothesis", "testing") from error
    return getattr(home, name)
