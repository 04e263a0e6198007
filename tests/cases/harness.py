"""Capture a small model, split it, and hold the result against the captured graph.

``split`` checks what holds for every split (the structure, and that the input is left alone);
``agree`` runs both graphs and compares values, state, strides, aliases, arguments and the random
stream bit for bit; ``maps`` deals the operators of a graph out to the owners in many ways, so that
a hazard is tried wherever the cut falls.
"""

from __future__ import annotations

import copy
import itertools
import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from hierpart import BackendOpSupportTester, hierarchical_adjacency_partition
from hierpart.plan import EAGER, Plan
from tests.models import without_guards

CALLS = ("call_function", "call_method", "call_module")
NAME = re.compile(r"_run_on_acc_(?P<backend>\w+)_\d+|_run_on_gpu_\d+")
SEED = 1234
Support = Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """One submodule of the parent, in the order of its call."""

    name: str
    backend: str
    module: GraphModule

    def calls(self) -> list[Node]:
        return [n for n in self.module.graph.nodes if n.op in CALLS]


@dataclass(frozen=True)
class Split:
    """A captured graph and what became of it."""

    source: GraphModule
    parent: GraphModule
    tester: BackendOpSupportTester
    plan: Plan

    @property
    def blocks(self) -> list[Block]:
        """Blocks in the order in which the parent calls them."""
        found = []
        for node in self.parent.graph.nodes:
            match = NAME.fullmatch(str(node.target)) if node.op == "call_module" else None
            if match:
                module = self.parent.get_submodule(node.target)
                found.append(Block(node.target, match["backend"] or EAGER, module))
        return found

    @property
    def backends(self) -> list[str]:
        return [b.backend for b in self.blocks]

    def running_order(self) -> list[str]:
        """Names of the callable nodes in the order in which they run."""
        return [n.name for b in self.blocks for n in b.calls()]

    def homes(self, name: str) -> list[str]:
        """Backends of the blocks that hold the node called ``name``."""
        return [b.backend for b in self.blocks for n in b.calls() if n.name == name]

    def home_of_op(self, text: str) -> set[str]:
        """Backends of the nodes whose target has ``text`` in its name."""
        return {b.backend for b in self.blocks for n in b.calls() if text in str(n.target)}


def export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Any = None,
    decompose: bool = True,
) -> GraphModule:
    """Return the unlifted aten graph of ``model``, without the call that checks inputs."""
    program = torch.export.export(
        model, args, dict(kwargs or {}), dynamic_shapes=dynamic, strict=False
    )
    if decompose:
        program = program.run_decompositions()
    return without_guards(program.module())


def trace(model: torch.nn.Module, args: tuple[Any, ...] = ()) -> GraphModule:
    """Return the symbolic trace of ``model``; with ``args``, with recorded values."""
    gm = torch.fx.symbolic_trace(model)
    if args:
        record(gm, args)
    return gm


def record(gm: GraphModule, args: tuple[Any, ...]) -> None:
    """Write a fake value for every node into ``meta["val"]``."""
    mode = torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if n.op != "output":
                n.meta["val"] = value
            return value

    with mode:
        fake = pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
        Recorder(gm).run(*fake)


def split(gm: GraphModule, support: Support, **options: Any) -> Split:
    """Split ``gm`` with a minimum block size of 1 and check what holds for every split."""
    options = {"min_block_size": 1, "backend_priority": list(support) or ["tensorrt"], **options}
    before = _look(gm)
    parent, tester = hierarchical_adjacency_partition(
        gm, backend_support_map=dict(support), **options
    )
    assert _look(gm) == before, "the input graph was changed"
    result = Split(gm, parent, tester, parent.meta["hierpart"])
    check_structure(result)
    return result


def _look(gm: GraphModule) -> list[Any]:
    """Everything about a graph module that a splitter could change."""
    nodes = [
        (n.op, n.name, str(n.target), str(n.args), str(n.kwargs), sorted(n.meta), dir(n))
        for n in gm.graph.nodes
    ]
    state = [(k, id(v)) for k, v in (*gm.named_parameters(), *gm.named_buffers())]
    return [nodes, gm.code, state, sorted(vars(gm)), gm.training, sorted(map(str, gm.meta))]


def check_structure(result: Split) -> None:
    """Check the parts of the contract that need no run: C1, C2, C4, C6, C7 and the names."""
    source, parent, blocks = result.source, result.parent, result.blocks
    parent.graph.lint()
    assert [b.name for b in blocks] == [b.name for b in result.plan.blocks]
    assert [b.backend for b in blocks] == [b.backend for b in result.plan.blocks]
    names = [n.name for n in source.graph.nodes if n.op in CALLS]
    ran = [n for b in result.plan.blocks for n in b.nodes]
    assert sorted(ran) == sorted(set(ran)), "a node is in two blocks of the plan"
    missing = set(names) - set(ran)
    assert not missing, f"nodes in no block: {sorted(missing)}"
    for block in blocks:
        check_block(result, block)
    originals = {id(t) for t in _tensors_of(source)}
    for block in blocks:
        for tensor in _tensors_of(block.module):
            assert id(tensor) in originals, f"{block.name} holds a tensor of its own"
    used = {str(n.target).split(".")[0] for n in parent.graph.nodes if n.op in ("get_attr", *CALLS)}
    for child, _ in parent.named_children():
        assert child in used, f"the parent keeps {child!r}, which nothing uses"


def check_block(result: Split, block: Block) -> None:
    """Check one block: lint, placeholders first, flat tuple out, each output used and once."""
    graph = block.module.graph
    graph.lint()
    ops = [n.op for n in graph.nodes]
    assert ops == sorted(ops, key=_rank), f"{block.name}: {ops}"
    returned = graph.output_node().args[0]
    assert isinstance(returned, tuple), f"{block.name} returns {returned!r}, not a tuple"
    assert len(set(returned)) == len(returned), f"{block.name} returns a value twice"
    (call,) = [n for n in result.parent.graph.nodes if n.target == block.name]
    unpacked = {n.args[1] for n in call.users if n.target is operator.getitem and n.users}
    assert unpacked == set(range(len(returned))), f"{block.name} returns what nobody reads"
    for value in (*(n.meta.get("val") for n in graph.find_nodes(op="placeholder")),):
        assert _may_cross(value), f"{type(value).__name__} enters {block.name}"
    for node in graph.nodes:
        if node.op == "get_attr":
            _resolve(block.module, node.target)


def _rank(op: str) -> int:
    return {"placeholder": 0, "get_attr": 1, "output": 3}.get(op, 2)


def _may_cross(value: Any) -> bool:
    crossing = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return value is None or isinstance(value, crossing)


def _resolve(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _tensors_of(gm: GraphModule) -> list[torch.Tensor]:
    """Parameters, buffers and constants of a module, those of branch modules included."""
    found = [t for _, t in (*gm.named_parameters(), *gm.named_buffers())]
    for part in gm.modules():
        if isinstance(part, GraphModule):
            values = [_resolve(part, n.target) for n in part.graph.find_nodes(op="get_attr")]
            found += [v for v in values if isinstance(v, torch.Tensor)]
    return list({id(t): t for t in found}.values())


Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


def agree(
    result: Split,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    more: Sequence[tuple[Any, ...]] = (),
) -> None:
    """Call the captured graph and the split one on equal arguments and state; compare all (C8).

    Args:
        result: The split.
        args: Arguments of the first call.
        kwargs: Keyword arguments of the first call.
        more: Arguments of further calls, made in turn while the state goes on.
    """
    calls: Calls = [(args, dict(kwargs or {})), *((a, {}) for a in more)]
    _compare(_observe(result.parent, calls, result.source), _observe(result.source, calls))


def _observe(
    gm: GraphModule, calls: Calls, owner: GraphModule | None = None
) -> list[dict[str, Any]]:
    """Make the calls in turn on copies of the arguments, then put the state back.

    Args:
        gm: The graph to call.
        calls: Arguments of each call.
        owner: The graph whose parameters and buffers are the state; default ``gm``.
    """
    state = {id(t): t for t in _tensors_of(owner or gm)}
    saved = {k: t.detach().clone() for k, t in state.items()}
    seen = [_call(gm, call, state) for call in copy.deepcopy(calls)]
    with torch.no_grad():
        for key, tensor in state.items():
            tensor.copy_(saved[key])
    return seen


def _compare(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        for what, value in w.items():
            same(g[what], value, f"call {i}: {what}")


def _call(
    gm: GraphModule, call: tuple[tuple[Any, ...], dict[str, Any]], state: Mapping[int, torch.Tensor]
) -> dict[str, Any]:
    """Run one call; return its results, what became of arguments and state, and how they alias."""
    args, kwargs = call
    given = pytree.tree_leaves((args, kwargs))
    torch.manual_seed(SEED)
    got = gm(*args, **kwargs)
    leaves = pytree.tree_leaves(got)
    known = [t.untyped_storage()._cdata for t in (*_dense(given), *state.values())]
    known += [t.untyped_storage()._cdata for t in _dense(leaves)]
    aliases = [known.index(t.untyped_storage()._cdata) for t in _dense(leaves)]
    identical = [next((i for i, g in enumerate(given) if g is t), None) for t in leaves]
    return {
        "results": pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), got),
        "strides": [t.stride() for t in _dense(leaves)],
        "offsets": [t.storage_offset() for t in _dense(leaves)],
        "gradients wanted": [t.requires_grad for t in _dense(leaves)],
        "aliases": aliases,
        "inputs among the results": identical,
        "arguments": [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in given],
        "state": [t.detach().clone() for t in state.values()],
        "random stream": torch.get_rng_state(),
        "modes": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")),
    }


def _dense(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided]


def same(got: Any, want: Any, where: str) -> None:
    """Assert that two trees are equal bit for bit, in dtype, shape and structure."""
    (g, spec), (w, wanted) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert spec == wanted, f"{where}: {spec} instead of {wanted}"
    for i, (a, b) in enumerate(zip(g, w, strict=True)):
        if isinstance(b, torch.Tensor):
            assert isinstance(a, torch.Tensor), f"{where}[{i}]: {type(a).__name__}, not a tensor"
            assert a.dtype == b.dtype, f"{where}[{i}]: {a.dtype} instead of {b.dtype}"
            assert a.shape == b.shape, f"{where}[{i}]: {a.shape} instead of {b.shape}"
            assert _equal(a, b), f"{where}[{i}]: {a} instead of {b}"
        else:
            assert type(a) is type(b), f"{where}[{i}]: {type(a).__name__}, not {type(b).__name__}"
            assert a == b, f"{where}[{i}]: {a!r} instead of {b!r}"


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    nans = a.isnan(), b.isnan()
    return torch.equal(*nans) and torch.equal(a.masked_fill(nans[0], 0), b.masked_fill(nans[1], 0))


def near(got: Any, want: Any) -> None:
    """Assert that two trees have the same structure, dtypes, shapes and nearly the same values."""
    assert pytree.tree_structure(got) == pytree.tree_structure(want)
    torch.testing.assert_close(pytree.tree_leaves(got), pytree.tree_leaves(want))


def operators(gm: GraphModule) -> list[Any]:
    """Distinct ops of a graph as a support map may name them, in graph order, unpacking left out."""
    found: dict[Any, None] = {}
    for node in gm.graph.nodes:
        if node.op == "call_module":
            found.setdefault(type(gm.get_submodule(node.target)))
        elif node.op in CALLS and node.target is not operator.getitem:
            found.setdefault(node.target)
    return list(found)


def maps(gm: GraphModule, limit: int = 10) -> Iterator[dict[str, set[Any]]]:
    """Yield support maps that deal the graph's ops out to three owners.

    All of them where they are at most ``limit``, else that many drawn at random, and always the
    one that gives everything to the first backend.
    """
    ops, owners = operators(gm), ("tensorrt", "inductor", EAGER)
    rng = random.Random(len(ops))
    if len(owners) ** len(ops) <= limit:
        deals = list(itertools.product(owners, repeat=len(ops)))
    else:
        deals = [tuple(rng.choice(owners) for _ in ops) for _ in range(limit - 1)]
        deals.insert(0, ("tensorrt",) * len(ops))
    for deal in deals:
        taken = list(zip(ops, deal, strict=True))
        yield {b: {op for op, owner in taken if owner == b} for b in owners if b != EAGER}


def everywhere(
    gm: GraphModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    more: Sequence[tuple[Any, ...]] = (),
    limit: int = 10,
) -> list[Split]:
    """Split ``gm`` under many support maps and check that every result agrees with it."""
    calls: Calls = [(args, dict(kwargs or {})), *((a, {}) for a in more)]
    want, results = _observe(gm, calls), []
    for support in maps(gm, limit):
        results.append(split(gm, support))
        _compare(_observe(results[-1].parent, calls, gm), want)
    return results


def through_dynamo(
    model: torch.nn.Module,
    calls: Sequence[tuple[Any, ...]],
    support: Support,
    dynamic: bool = False,
) -> list[Split]:
    """Split Dynamo's own graph inside ``torch.compile`` and compare every call with eager."""
    found: list[Split] = []

    def backend(gm: GraphModule, example_inputs: list[Any]) -> GraphModule:
        found.append(split(gm, support))
        return found[-1].parent

    torch._dynamo.reset()
    compiled = torch.compile(
        copy.deepcopy(model), backend=backend, fullgraph=True, dynamic=dynamic or None
    )
    eager = copy.deepcopy(model)
    for args in calls:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        torch.manual_seed(SEED)
        got = compiled(*mine)
        torch.manual_seed(SEED)
        want = eager(*theirs)
        near(
            pytree.tree_map_only(torch.Tensor, torch.detach, got),
            pytree.tree_map_only(torch.Tensor, torch.detach, want),
        )
        near(mine, theirs)
        assert not torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
    near(dict(compiled.named_buffers()), {f"_orig_mod.{k}": v for k, v in eager.named_buffers()})
    return found


def vector(*shape: int, seed: int = 0) -> torch.Tensor:
    """A seeded tensor of normal floats."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
