"""Hypothesis profiles; choose one with ``pytest --hypothesis-profile=NAME``.

ci    the default: the same examples each time, no database
dev   few examples, new ones each time, failing ones remembered
slow  2,000 examples a test
deep  as many examples as hours allow: ``pytest -m slow tests/test_properties.py -k profile``
"""

from hypothesis import HealthCheck, settings

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
