"""Hypothesis profiles; choose one with ``pytest --hypothesis-profile=NAME``.

ci    the default: the same examples each time, no database
dev   few examples, new ones each time, failing ones remembered
slow  2,000 examples a test
deep  as many examples as hours allow: ``pytest -m slow tests/test_properties.py -k profile``
"""

import pytest
from hypothesis import HealthCheck, settings

UNCOUNTED = (
    *(
        "properties",
        "scaling",
        "same_plan",
        "fewest_blocks",
        "mutants",
        "no_extras",
        "docs",
        "site",
    ),
    *("results", "peers_faults", "gpu_benchmark", "import_cost", "memory", "browser", "demo"),
)
"""Tests that run what others run too, many times or in processes of their own."""

FAST = (
    *("layers", "graph", "effects", "literals", "proved", "options", "assign", "merge"),
    *("placement", "split", "wiring", "plan", "partitioner", "api"),
)
"""Tests of ``graph/``, ``partition/`` and what they stand on: ``pytest -m fast``, under two minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is fast and what is not to be counted (``pytest --cov``); slow tests may take hours.

    Counting slows a test by half.
    """
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))
        elif item.path.stem.removeprefix("test_") in FAST:
            item.add_marker("fast")
        again = item.path.stem.removeprefix("test_") in UNCOUNTED or "cases" in item.path.parts
        if again or item.get_closest_marker("inductor"):
            item.add_marker("no_cover")


_PATIENT = {
    # Building and judging a graph takes long and draws much; neither says anything is wrong.
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("ci", derandomize=True, database=None, max_examples=100, **_PATIENT)
settings.register_profile("dev", max_examples=30, print_blob=True, **_PATIENT)
settings.register_profile("slow", max_examples=2000, print_blob=True, **_PATIENT)
settings.register_profile("deep", max_examples=200_000, print_blob=True, **_PATIENT)
settings.load_profile("ci")
