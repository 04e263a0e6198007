"""The command line: what it prints, its exit codes, and one clear line for what cannot be used."""

import json
import math
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from hierpart.cli.arguments import EPILOG
from hierpart.cli.command_line import _options, _parser, main
from hierpart.cli.compare import Check, compare
from hierpart.options import Options
from hierpart.plan import Plan

SUPPORT = "fast=torch.ops.aten.linear.default,torch.ops.aten.relu.default"


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), dim=-1)


@pytest.fixture(scope="module")
def pt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "small.pt2"
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Small().eval(), (torch.randn(2, 4),)), path)
    return path


@pytest.fixture
def nets(monkeypatch):
    """Put a module of factories where the command line can import it."""
    module = types.ModuleType("nets_of_test_cli")
    module.make = lambda: (Small().eval(), (torch.randn(2, 4),))
    module.bare = Small
    module.fails = lambda: {}["weights"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def refused(capsys, *argv):
    """Run a command that has to fail with exit code 2 and return its one line on stderr."""
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def test_explain_a_file(pt2, capsys):
    assert main(["explain", str(pt2), "--priority", "fast", "--support", SUPPORT]) == 0
    out, err = capsys.readouterr()
    assert "what runs where" in out
    assert "aten.softmax.int" in out
    assert err == ""


def test_explain_a_factory_as_json(nets, capsys):
    argv = ["explain", f"{nets.__name__}:make", "--priority", "fast", "--support", SUPPORT]
    assert main([*argv, "--min-block-size", "fast=2", "--json"]) == 0
    plan = Plan.from_json(capsys.readouterr().out)
    assert plan.priority == ("fast", "eager")
    assert plan.min_block_size["fast"] == 2
    assert [block.backend for block in plan] == ["fast", "eager"]


def test_support_from_a_file(pt2, tmp_path, capsys):
    names = tmp_path / "ops.txt"
    names.write_text("torch.ops.aten.linear.default\n\ntorch.ops.aten.relu.default\n")
    argv = ["explain", str(pt2), "--priority", "fast", "--min-block-size", "1", "--json"]
    assert main([*argv, "--support", f"fast=@{names}"]) == 0
    assert [block.backend for block in Plan.from_json(capsys.readouterr().out)] == ["fast", "eager"]


def test_require_full_says_no_and_why(pt2, capsys):
    argv = ["explain", str(pt2), "--priority", "fast", "--support", SUPPORT, "--require-full"]
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "softmax" in err
    everything = SUPPORT + ",torch.ops.aten.softmax.int"
    assert main([*argv[:5], everything, "--require-full"]) == 0


def test_torch_executed_ops_go_to_eager(pt2, capsys):
    argv = ["explain", str(pt2), "--priority", "fast", "--support", SUPPORT, "--json"]
    relu = "torch.ops.aten.relu.default"
    assert main([*argv, "--torch-executed-ops", relu, "--min-block-size", "1"]) == 0
    plan = Plan.from_json(capsys.readouterr().out)
    owners = {plan.ops[name]: owner for name, owner in plan.owner.items()}
    assert owners[relu] == "eager"
    assert owners["torch.ops.aten.linear.default"] == "fast"


def test_files_that_cannot_be_used(pt2, tmp_path, capsys):
    assert "no such file" in refused(capsys, "explain", tmp_path / "missing.pt2")
    text = tmp_path / "text.pt2"
    text.write_text("not a program")
    assert "not a file written by torch.export.save" in refused(capsys, "explain", text)
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(pt2.read_bytes()[: pt2.stat().st_size // 2])
    assert str(cut) in refused(capsys, "compile", cut)


def test_a_zip_of_something_else(tmp_path, capsys):
    other = tmp_path / "weights.pt2"
    torch.save({"w": torch.ones(2)}, other)
    assert "not written by torch.export.save" in refused(capsys, "explain", other)


def test_a_factory_that_raises_is_told_in_one_line_with_its_place(nets, capsys):
    said = refused(capsys, "explain", "nets_of_test_cli:fails")
    assert "nets_of_test_cli:fails: raised KeyError: 'weights' (" in said
    assert "test_cli.py:" in said


def test_factories_that_cannot_be_used(nets, capsys):
    assert "module:factory" in refused(capsys, "explain", "nonsense")
    assert "no_such_module" in refused(capsys, "explain", "no_such_module:make")
    assert "did you mean 'make'?" in refused(capsys, "explain", f"{nets.__name__}:mak")
    assert "(model, args)" in refused(capsys, "explain", f"{nets.__name__}:bare")


def test_options_that_cannot_be_used(pt2, capsys):
    unknown = refused(capsys, "explain", pt2, "--torch-executed-ops", "torch.ops.aten.rleu.default")
    assert "rleu" in unknown
    assert "relu" in unknown
    assert "tensort" in refused(capsys, "explain", pt2, "--priority", "tensort")
    support = refused(capsys, "explain", pt2, "--support", "fast=torch.ops.aten.relu.default")
    assert "'fast', which is not in backend_priority" in support


def test_the_page_is_written_besides(pt2, tmp_path, capsys):
    page = tmp_path / "report.html"
    argv = ["explain", str(pt2), "--priority", "fast", "--support", SUPPORT, "--html", str(page)]
    assert main([*argv, "--min-block-size", "1", "--advice"]) == 0
    text, out = page.read_text(), capsys.readouterr().out
    assert "What would help most" in text
    assert "small.pt2</h1>" in text
    assert "what runs where" in out
    assert "if a backend supported an op that it refuses" in out
    assert refused(capsys, *argv[:-1], tmp_path / "no" / "page.html").endswith(
        "page.html: No such file or directory\n"
    )


def test_advice_as_json(pt2, capsys):
    argv = ["explain", str(pt2), "--priority", "fast", "--support", SUPPORT, "--json", "--advice"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    advice = json.loads(out)["report"]["advice"]
    assert advice["suggestions"][0]["op"] == "torch.ops.aten.softmax.int"
    assert [row["size"] for row in advice["sizes"]][:2] == [None, 1]
    assert Plan.from_json(out).priority == ("fast", "eager")


def test_draw(pt2, tmp_path, capsys):
    picture = tmp_path / "small.json"
    argv = ["draw", str(pt2), str(picture), "--priority", "fast", "--support", SUPPORT]
    assert main(argv) == 0
    assert capsys.readouterr().out == f"{picture}\n"
    assert len(json.loads(picture.read_text())["results"]) == 4
    assert "gif" in refused(capsys, *argv[:2], tmp_path / "small.gif", *argv[3:])


def test_repro_of_a_block(pt2, tmp_path, capsys):
    argv = [
        "explain",
        str(pt2),
        "--priority",
        "fast",
        "--support",
        SUPPORT,
        "--min-block-size",
        "1",
    ]
    assert main([*argv, "--repro", f"1={tmp_path}"]) == 0
    capsys.readouterr()
    assert (tmp_path / "block_1.py").is_file()
    assert "there is no block 9" in refused(capsys, *argv, "--repro", f"9={tmp_path}")


def test_a_file_with_an_op_that_nothing_registers_names_it(pt2, tmp_path, capsys):
    script = (
        "import sys, torch\n"
        "with torch.library._scoped_library('of_test_cli', 'FRAGMENT') as lib:\n"
        "    lib.define('twice(Tensor x) -> Tensor')\n"
        "    lib.impl('twice', lambda x: 2 * x, 'CompositeExplicitAutograd')\n"
        "    module = torch.nn.Module()\n"
        "    class Twice(torch.nn.Module):\n"
        "        def forward(self, x): return torch.ops.of_test_cli.twice(x)\n"
        "    torch.export.save(torch.export.export(Twice(), (torch.ones(2),)), sys.argv[1])\n"
    )
    path = tmp_path / "twice.pt2"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True)
    said = refused(capsys, "explain", path)
    assert "the op of_test_cli.twice.default, which nothing has registered" in said
    assert "--import" in said
    gone = refused(capsys, "explain", path, "--import", "no_such_module_here")
    assert "no_such_module_here" in gone


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["paint"],
        ["explain"],
        ["explain", "a:b", "--min-block-size", "five"],
        ["explain", "a:b", "--min-block-size", "fast="],
        ["explain", "a:b", "--support", "fast"],
        ["explain", "a:b", "--support", "fast=@no/such/file"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err.splitlines()[-1]


def test_the_examples_of_the_help_are_right(capsys):
    lines = [line.split() for line in EPILOG.splitlines() if line.startswith("  python")]
    assert len(lines) >= 5
    for words in lines:
        _parser().parse_args(words[3:])
    with pytest.raises(SystemExit) as stop:
        main(["explain", "--help"])
    assert stop.value.code == 0
    assert EPILOG.strip() in capsys.readouterr().out


def test_backends(capsys):
    assert main(["backends", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["inductor"] == {"available": True, "why_not": None}
    assert main(["backends"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*rows, "eager"]


def test_a_plug_in_that_does_not_load_is_a_line(monkeypatch, capsys):
    from importlib.metadata import EntryPoint

    from hierpart.backends import registry as backends

    broken = EntryPoint("broken", "no_such_module:Backend", backends.ENTRY_POINT_GROUP)
    monkeypatch.setattr(backends, "entry_points", lambda group: (broken,))
    backends.entry_point_backends.cache_clear()
    try:
        assert main(["backends"]) == 0
    finally:
        backends.entry_point_backends.cache_clear()
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("broken"))
    assert "cannot be loaded: ModuleNotFoundError" in line


def test_as_a_process(pt2):
    command = [sys.executable, "-m", "hierpart", "explain", str(pt2), "--priority", "inductor"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("4 nodes in 1 block")
    gone = subprocess.run([*command[:4], "gone.pt2"], capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert gone.stderr == "hierpart: gone.pt2: no such file\n"


def test_a_reader_that_closes_the_pipe_is_no_error(pt2):
    command = [sys.executable, "-m", "hierpart", "explain", str(pt2), "--priority", "inductor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()  # torch may warn here: its warnings are not ours to forbid
    assert process.returncode == 0
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


@pytest.mark.inductor
def test_compile_checks_against_eager(pt2, capsys):
    assert main(["compile", str(pt2), "--priority", "inductor", "--min-block-size", "1"]) == 0
    out, _ = capsys.readouterr()
    assert "compiled" in out
    assert "equal within" in out


def test_compile_says_no_when_the_results_differ(nets, monkeypatch, capsys):
    wrong = Check(difference=1.0, eager=1.0, compiled=1.0)
    monkeypatch.setattr("hierpart.cli.compare.compare", lambda *args, **kwargs: wrong)
    assert main(["compile", f"{nets.__name__}:make", "--priority", "eager"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_compile_takes_the_options_that_contain_failures(pt2, capsys):
    words = "--check --strict --compile-timeout 60 --compile-memory 4G --workers 1 --max-blocks 0"
    given = _options(_parser().parse_args(["compile", str(pt2), *words.split()]))
    assert (given.check, given.strict, given.max_blocks) == (True, True, 0)
    assert (given.compile_timeout, given.compile_memory, given.compile_workers) == (60, 4 << 30, 1)
    assert _options(_parser().parse_args(["compile", str(pt2)])) == Options()
    error = refused(capsys, "compile", pt2, "--compile-timeout", "0")
    assert "compile_timeout takes a number above 0" in error
    with pytest.raises(SystemExit):
        main(["compile", str(pt2), "--compile-memory", "lots"])
    assert "'lots' is neither a number of bytes nor like 512M" in capsys.readouterr().err


def test_strict_says_no_and_why_when_a_block_fails(pt2, monkeypatch, capsys):
    def fail(*args):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("hierpart.backends.inductor.InductorBackend.compile", fail)
    command = ["compile", str(pt2), "--priority", "inductor", "--min-block-size", "1"]
    command += ["--workers", "1"]
    assert main(command) == 0
    assert "no such kernel" in capsys.readouterr().out
    assert main([*command, "--strict"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert "no such kernel" in err


class Counter(nn.Module):
    def __init__(self, step=1.0):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.step = step

    def forward(self, x, *, scale=1.0):
        self.count.add_(self.step)
        return {"y": x * scale, "n": x.isnan()}


def test_compare_sees_outputs_buffers_and_inputs():
    x = torch.tensor([1.0, math.nan, math.inf])
    assert compare(Counter(), Counter(), (x,), {"scale": 2.0}).difference == 0
    assert compare(Counter(), Counter(1.5), (x,)).difference == 1.5
    plain = nn.Identity()
    for wrong in (
        lambda t: t.double(),
        lambda t: t[:1],
        lambda t: torch.zeros_like(t),
        lambda t: t.add_(1),
    ):
        module = nn.Module()
        module.forward = wrong
        assert not compare(plain, module, (x,)).passed()
