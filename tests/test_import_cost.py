"""``import hierpart`` costs what ``import torch`` costs: no compiler and no optional package."""

import subprocess
import sys
import textwrap

import pytest

HEAVY = ("torch._dynamo", "torch._inductor", "torch_tensorrt", "rich", "hypothesis", "networkx")


def imported(code: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter has imported after ``code``."""
    script = f"{code}\nimport sys\nprint(*(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def with_torch() -> set[str]:
    """Return what plain torch imports by itself."""
    return imported("import torch, torch.fx")


def test_import_pulls_in_nothing_heavy(with_torch):
    assert imported("import hierpart") <= with_torch


def test_planning_pulls_in_no_compiler(with_torch):
    code = """
        import torch, hierpart

        def f(x):
            return x.relu()

        gm = torch.fx.symbolic_trace(f)
        options = {"backend_priority": ["a"], "backend_support_map": {"a": {"relu"}}}
        hierpart.hierarchical_adjacency_partition(gm, min_block_size=1, **options)
        print(hierpart.make_plan(gm, min_block_size=1, **options), file=sys.stderr)
    """
    extra = imported("import sys\n" + textwrap.dedent(code)) - with_torch
    assert extra <= {"networkx"}  # checks the quotient graph; inside the function


def test_this_test_can_fail(with_torch):
    assert imported("import hierpart, networkx") - with_torch == {"networkx"}
    assert "torch._dynamo" in imported("import hierpart, torch._dynamo")
