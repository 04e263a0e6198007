"""Files that were made to do harm: no code of theirs runs, and they are refused by ArtefactError.

Each has a digest that fits; the digest is no signature.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import random
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import hierpart
from hierpart import ArtefactError
from hierpart.artefact.archive import check_program
from hierpart.artefact.expressions import DEEPEST, read_expressions
from hierpart.artefact.members import read_members, write_members
from hierpart.capture.input_check import InputMismatchError

HOUSE = Path(hierpart.__file__).parent
RAN = "abs.__self__.__dict__.setdefault('CANARY', 1)"
"""What the attacks try to run; ``__builtins__`` has the key if one did."""


@pytest.fixture(autouse=True)
def canary():
    """Nothing that a file brings has run, imported or written by the end of the test."""
    import builtins

    before = set(sys.modules)
    yield
    assert not hasattr(builtins, "CANARY")
    assert not {m for m in set(sys.modules) - before if m.split(".")[0] in ("antigravity", "this")}


def test_the_canary_dies_where_sympy_reads_the_text():
    import builtins

    import sympy

    sympy.sympify(RAN)
    assert builtins.CANARY == 1
    del builtins.CANARY


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, extra):
        y = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
        return {"a": self.layer(y).reshape(-1, 2, 2)}, extra["b"] + x.shape[0]


ARGS = (torch.arange(8.0).reshape(4, 2), {"b": torch.ones(3)})


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    torch.manual_seed(0)
    model = Small().eval()
    shapes = ({0: 2 * Dim("half", min=1, max=16)}, {"b": None})
    module = hierpart.compile(model, ARGS, dynamic_shapes=shapes, backend_priority=[])
    path = tmp_path_factory.mktemp("trust") / "small.hpt"
    module.save(path)
    with torch.no_grad():
        return read_members(path), model(*ARGS)


def load(folder, members, **options):
    write_members(folder / "m", members)
    return hierpart.load(folder / "m", **options)


def with_manifest(members, **fields):
    manifest = json.loads(members["manifest.json"]) | fields
    return members | {"manifest.json": json.dumps(manifest).encode()}


def with_program(members, change):
    """Return the members with the program's JSON changed by ``change``, and its archive whole."""
    packed = io.BytesIO()
    whole = io.BytesIO(members["program.pt2"])
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(data)
                change(program)
                data = json.dumps(program).encode()
            target.writestr(name, data)
    return members | {"program.pt2": packed.getvalue()}


def places(data, key):
    """Return the objects in JSON data that have a key."""
    if isinstance(data, dict):
        return [
            *([data] if key in data else []),
            *(p for v in data.values() for p in places(v, key)),
        ]
    return [p for v in data for p in places(v, key)] if isinstance(data, list) else []


def at_first(key, value):
    def change(program):
        places(program, key)[0][key] = value

    return change


EXPRESSIONS = [
    f'Derivative(expr="{RAN}")',
    f'Symbol(name="{RAN}")',
    f'Lambda(expr="{RAN}", signature=Symbol("x"))',
    f'Integer("{RAN}")',
    f'Add("{RAN}")',
    f'Float("{RAN}")',
    "Pow(Integer(10), Pow(Integer(10), Integer(10)))",
    "Pow(Pow(Pow(Integer(10), Integer(9999)), Integer(9999)), Integer(9999))",
    "LShift(Integer(1), Integer(99999999999))",
    "Add(" * 5000 + "Integer(1)" + ")" * 5000,
    "-" * 90_000 + "oo",
    "Integer(" + "9" * 5000 + ")",
    "Integer(18446744073709551616)",
    "factorial(Integer(99999999))",
    "Symbol('a', integer=Integer(1))",
    "Symbol('a b')",
    "Integer(True)",
    "Pow(Integer(2), Integer())",
    "Mod(Integer(1), Integer(0))",
    "f'{1}'",
    "",
]


@pytest.mark.parametrize(
    ("levels", "told"), [(DEEPEST, "no part of"), (DEEPEST + 1, "deeper than")]
)
def test_the_bound_on_depth(levels, told):
    with pytest.raises(ArtefactError, match=told):
        read_expressions(["Not(" * levels + "x" + ")" * levels], [])


@pytest.mark.parametrize("field", ["guards", "conditions"])
@pytest.mark.parametrize("text", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_expressions_of_the_manifest_run_nothing_and_end(small, tmp_path, field, text):
    with pytest.raises(ArtefactError):
        read_expressions([text], [])
    with pytest.raises(ArtefactError, match="condition on sizes"):
        load(tmp_path, with_manifest(small[0], **{field: [text]}))


@pytest.mark.parametrize(
    "text", [t for t in EXPRESSIONS if not t.startswith("Mod")], ids=lambda t: t[:20]
)
def test_expressions_of_the_program_are_seen_before_torch(small, tmp_path, monkeypatch, text):
    monkeypatch.setattr(torch.export, "load", None)
    with pytest.raises(ArtefactError, match="condition on sizes"):
        load(tmp_path, with_program(small[0], at_first("expr_str", text)))


def spec(kind, context):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


FACTORY = {
    "default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": ["a"]
}  # fmt: skip
ENUM = {"__enum__": True, "fqn": "antigravity:x", "name": "y"}
PROGRAMS = {
    "a function for an operator": at_first("target", "torch.os.system"),
    "a library to load": at_first("target", "torch.ops.load_library"),
    "a file to write": at_first("target", "torch.ops.aten.from_file.default"),
    "a method caller": at_first("target", "_operator.methodcaller"),
    "an endless function": at_first("target", "math.factorial"),
    "an extension": at_first("target", "#x:y"),
    "an operator that is not there": at_first("target", "torch.ops.nothing.here"),
    "code for a name": at_first("name", f"x=print({RAN})"),
    "code for a name of a size": at_first("as_name", "x=exit()"),
    "an import by a defaultdict": at_first("in_spec", spec("collections.defaultdict", FACTORY)),
    "an import by an enum": at_first("out_spec", spec("builtins.dict", json.dumps([ENUM]))),
    "a loop without end": lambda p: p["range_constraints"].update(
        u99999999999={"min_val": 0, "max_val": 1}
    ),
    "code for a range": lambda p: p["range_constraints"].update(
        {"__import__('os')": {"min_val": 0, "max_val": 1}}
    ),
    "no ranges": lambda p: p.pop("range_constraints"),
    "numbers for guards": lambda p: p.update(guards_code=[1]),
}


@pytest.mark.parametrize("change", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_programs_run_nothing(small, tmp_path, monkeypatch, change):
    monkeypatch.setattr(torch.export, "load", None)  # it is seen before torch reads it
    with pytest.raises(ArtefactError, match="the exported program"):
        load(tmp_path, with_program(small[0], change))


@pytest.mark.parametrize(
    "change",
    [lambda p: p.pop("graph_module"), lambda p: p.update(graph_module=[1])],
    ids=["no graph", "a graph of another kind"],
)
def test_programs_that_torch_cannot_read_are_artefact_errors(small, tmp_path, change):
    with pytest.raises(ArtefactError, match=r"torch\.export cannot read"):
        load(tmp_path, with_program(small[0], change))


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("models/MODEL.json", "two members of one name"),  # one name to torch's reader
        ("data/aotinductor/model/x.so", "which torch does not write"),  # a library that it loads
    ],
)
def test_members_that_torch_does_not_write_are_refused(small, member, told):
    packed = io.BytesIO(small[0]["program.pt2"])
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(f"archive/{member}", "{}")
    with pytest.raises(ArtefactError, match=told):
        check_program(packed.getvalue())


def test_a_file_cannot_say_that_inductors_code_is_no_pickle(tmp_path, small):
    from hierpart.artefact.reading import readable_blocks

    manifest = {"blocks": {"x": ["inductor", "blocks/0", False, True]}, "compiled_again": {}}
    saved, again = readable_blocks(manifest, {"blocks/0": b"pickle"}, False, False)
    assert not saved
    assert "allow_pickle" in again["x"]


def test_a_file_cannot_name_the_compiler_that_is_run(small, tmp_path):
    options = {"inductor": {"cpp.cxx": [None, "/bin/evil"], "epilogue_fusion": False,
                            "flags": "-fplugin evil"}}  # fmt: skip
    module = load(tmp_path, with_manifest(small[0], options=options))
    assert any(
        "cpp.cxx" in note and "flags" in note and "epilogue" not in note
        for note in module.report.notes
    )


ODD = [None, True, -1, 1.5, "x", [], [1], {}, {"x": 1}, [["x"]], {"x": ["y"]}, 10**30]


def test_odd_manifests_are_artefact_errors(small, tmp_path):
    manifest = json.loads(small[0]["manifest.json"])
    for key in manifest:
        for odd in ODD:
            with contextlib.suppress(ArtefactError):
                load(tmp_path, with_manifest(small[0], **{key: odd}))
        left = json.dumps({k: v for k, v in manifest.items() if k != key}).encode()
        with contextlib.suppress(ArtefactError):
            load(tmp_path, small[0] | {"manifest.json": left})
    for text in (
        b"",
        b"[]",
        b"1",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"format":1,"format":1}',
    ):
        with pytest.raises(ArtefactError):
            load(tmp_path, small[0] | {"manifest.json": text})
        with pytest.raises(ArtefactError):
            load(tmp_path, small[0] | {"plan.json": text})
        with pytest.raises(ArtefactError):
            load(tmp_path, small[0] | {"program.pt2": text})


@pytest.mark.parametrize("unchecked", ["check_program", "check_expression"])
def test_what_could_not_be_read_is_not_written(small, tmp_path, monkeypatch, unchecked):
    guard = "Equality(Symbol('s77', integer=True), Integer(4))"
    module = load(tmp_path, with_manifest(small[0], guards=[guard]))
    monkeypatch.setattr(f"hierpart.artefact.writing.{unchecked}", lambda given: None)
    monkeypatch.setattr("hierpart.artefact.expressions.LONGEST", 3)
    with pytest.raises(ArtefactError, match="at most 3 characters"):
        module.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        ("blocks", {"x": ["inductor", "blocks/0"]}),
        ("compiled_again", {"x": 1}),
        ("fallback", 1),
        ("options", {"inductor": []}),
        ("names", {"": [1]}),
        ("tied", []),
        ("guards", "true"),
        ("conditions", [1]),
        ("notes", None),
    ],
)
def test_an_odd_field_is_named(small, tmp_path, field, odd):
    with pytest.raises(ArtefactError, match=f"odd or no {field}$"):
        load(tmp_path, with_manifest(small[0], **{field: odd}))


def test_members_that_stand_twice_are_refused(tmp_path, monkeypatch):
    class Twice(dict):
        def items(self):
            return [*super().items(), ("a", b"other")]

    with pytest.warns(UserWarning, match="Duplicate"):
        write_members(tmp_path / "m", Twice(a=b"one"))
    with pytest.raises(ArtefactError, match="holds a twice"):
        read_members(tmp_path / "m")


def test_what_a_killed_save_left_is_removed_by_the_next_one(tmp_path):
    dead = tmp_path / f".m.{2**22 + 5}.{'0' * 16}.part"
    older, other = tmp_path / f".m.{'0' * 16}.part", tmp_path / f".n.{'0' * 16}.part"
    alive = tmp_path / f".m.1.{'0' * 16}.part"
    for path in (dead, older, other, alive):
        path.touch()
    write_members(tmp_path / "m", {"a": b""})
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([other.name, alive.name, "m"])


def changed(data, pick):
    """Return JSON data with one place changed."""
    spots = []

    def walk(item):
        for key in item if isinstance(item, dict) else range(len(item)):
            spots.append((item, key))
            if isinstance(item[key], (dict, list)):
                walk(item[key])

    walk(data)
    item, key = pick.choice(spots)
    kind = pick.randrange(4)
    if kind == 0:
        del item[key]
    elif kind == 1:
        item[key] = pick.choice([*ODD, RAN, *EXPRESSIONS[:9]])
    elif kind == 2:
        item[key] = pick.choice(spots)[0]
    elif isinstance(item, list):
        item.append(item[key])
    else:
        item[key] = [item[key]]
    return data


def attack(folder, members, pick):
    """Change a file at random, and load and run it: an error of ours, or the right result.

    What is right for a program that was changed is what torch makes of it.
    """
    member = pick.choice(["manifest.json", "plan.json", "program.pt2", "bytes"])
    try:
        if member == "program.pt2":
            members = with_program(members, lambda p: changed(p, pick))
        elif member == "bytes":
            name = pick.choice([m for m in members if m != "program.pt2"] + ["program.pt2"] * 2)
            data = bytearray(members[name])
            data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
            members = members | {
                name: bytes(data[: pick.choice([None, pick.randrange(len(data))])])
            }
        else:
            members = members | {
                member: json.dumps(changed(json.loads(members[member]), pick)).encode()
            }
    except ValueError:  # a circle
        return "none"
    try:
        module = load(folder, members)
    except ArtefactError:
        return "refused"
    try:
        found = module(*ARGS)
    except (InputMismatchError, ArtefactError):
        return "refused when called"
    except Exception as error:
        if member in ("program.pt2", "bytes"):
            with pytest.raises(Exception):  # noqa: B017, PT011 - torch fails with it as well
                torch.export.load(io.BytesIO(members["program.pt2"])).module()(*ARGS)
            return "fails as torch does"
        raise AssertionError(f"{member}: {error}") from error
    wanted = torch.export.load(io.BytesIO(members["program.pt2"])).module()(*ARGS)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    return "right"


@pytest.mark.parametrize(
    "count", [150, pytest.param(2000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_files_changed_at_random(small, tmp_path, count):
    told = [attack(tmp_path, small[0], random.Random(seed)) for seed in range(count)]
    assert told.count("refused") > count / 4
    assert told.count("right") > count / 20


KNOWN = {
    ("runtime/flat_function.py", "exec"): "code that FX wrote; names in it are identifiers",
    ("runtime/flat_function.py", "compile"): "the same code",
    ("graph/node/symbols.py", "eval"): "what sympy's printer wrote of checked expressions",
    ("__init__.py", "import_module"): "names of the library's own modules",
    ("report/drawing.py", "import_module"): "a literal name",
    ("backends/tensorrt/library.py", "import_module"): "a literal name",
    ("cli/targets.py", "import_module"): "what the user names on the command line",
    ("testing/__init__.py", "import_module"): "names of the library's own modules",
    ("artefact/archive.py", "load"): "torch.load with weights_only=True",
    ("artefact/reading.py", "load"): "torch.export.load of what archive.check_program has checked",
    ("cli/targets.py", "load"): "torch.export.load of the file that the user names",
    ("backends/inductor/code.py", "load"): "a pickle; read where pickles are allowed, of any file",
}
RISKY = (
    "eval",
    "exec",
    "compile",
    "sympify",
    "parse_expr",
    "loads",
    "import_module",
    "__import__",
    "load",
)
OWNERS = {
    "compile": {"builtins", ""}, "eval": {"", "builtins"}, "exec": {"", "builtins"}, "loads": {"pickle", "marshal", "cloudpickle"},
    "load": {"torch", "torch.export", "pickle", "marshal", "CompiledArtifact"},
}  # fmt: skip


def risky_calls():
    for path in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                function = node.func
                owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
                name = getattr(function, "attr", getattr(function, "id", ""))
                if name in RISKY and owner in OWNERS.get(name, {owner}):
                    yield path.relative_to(HOUSE).as_posix(), name, node


def test_every_place_that_turns_text_into_code_is_known():
    found = {(path, name) for path, name, _ in risky_calls()}
    assert found == set(KNOWN)
    for path, name, node in risky_calls():
        if (path, name) == ("artefact/archive.py", "load"):
            assert "weights_only=True" in ast.unparse(node)
