"""With torch and networkx alone everything that is no extra works, and an extra is named."""

import subprocess
import sys
import textwrap

EXTRAS = ("rich", "hypothesis", "pydot", "playwright", "torch_tensorrt", "tensorrt", "tensorrt_rtx",
          "torchvision", "transformers", "mkdocs", "matplotlib", "pytest")  # fmt: skip

HIDE = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in {EXTRAS!r}
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path = [Without if f is PathFinder else f for f in sys.meta_path]
"""


def run(program, *, extras=False):
    code = ("" if extras else HIDE) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_split_explain_json_html():
    done = run("""
        import torch, hierpart
        model, args = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), (torch.rand(2, 4),)
        support = {"fast": {"torch.ops.aten.linear.default"}}
        gm = torch.export.export(model, args).module()
        split, _ = hierpart.hierarchical_adjacency_partition(
            gm, 1, backend_support_map=support, backend_priority=["fast"])
        torch.testing.assert_close(split(*args), model(*args))
        report = hierpart.explain(model, args, backend_support_map=support,
                                  backend_priority=["fast"], min_block_size=1)
        print(report)
        print(len(report.to_json()), len(report.to_html()))
        assert not {"rich", "pydot", "hypothesis"} & set(sys.modules)
    """)
    assert done.returncode == 0, done.stderr
    assert "what runs where" in done.stdout


def test_the_command_line_explains():
    done = run("""
        import runpy
        sys.argv = ["hierpart", "explain", "hierpart.demo:build", "--priority", "inductor"]
        runpy.run_module("hierpart", run_name="__main__")
    """)
    assert done.returncode == 0, done.stderr
    assert "what runs where" in done.stdout


def test_what_an_extra_serves_names_it():
    for program, extra in (
        ("from hierpart.testing import graph_modules; graph_modules()", "hierpart[testing]"),
        (DRAW, "hierpart[viz]"),
        (FUZZ, "hierpart[testing]"),
    ):
        done = run(program)
        assert done.returncode != 0
        assert extra in done.stderr + done.stdout, done.stderr


DRAW = """
    import torch, hierpart
    report = hierpart.explain(torch.nn.ReLU(), (torch.rand(2),), backend_priority=[])
    report.draw("x.dot")
"""
FUZZ = """
    import runpy
    sys.argv = ["hierpart", "fuzz", "--seconds", "1"]
    runpy.run_module("hierpart", run_name="__main__")
"""


def test_the_extras_are_really_hidden():
    for name in ("rich", "hypothesis.strategies", "pydot"):
        assert run(f"import {name}").returncode != 0
    assert run("import rich", extras=True).returncode == 0
