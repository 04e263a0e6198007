"""One guard for each private name of torch that the library touches.

When a new torch changes one, the guard says where to look. ``@guards`` names what a test holds;
the inventory at the end reads the library's sources and fails for a private name without a guard.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.passes import splitter_base
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils._pytree import tree_structure

import hierpart
from hierpart.graph.construction import LazyModule, append_node
from hierpart.partition.splitting.block_module import share_attributes
from hierpart.testing.reading.snapshot import describe
from tests.cases.harness import export, same, trace, vector

aten = torch.ops.aten
exported = functools.partial(export, decompose=False)
GUARDED: set[str] = set()


def guards(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note that a test holds these private names, as the inventory spells them."""
    GUARDED.update(names)
    return lambda test: test


def has(owner: Any, *names: str, look: str) -> None:
    """Assert that ``owner`` has the names, saying what to look at where it has not."""
    missing = [n for n in names if not hasattr(owner, n)]
    assert not missing, f"{owner!r} has no {missing} any more; look at {look}"


# ------------------------------------------------------------------ torch.fx: graphs and nodes


class Layers(nn.Module):
    """A graph with every kind of node."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.weight = nn.Parameter(vector(3))

    def forward(self, x, n: int = 2, *rest, **named):
        h = torch.relu(self.linear(x)) * self.weight
        parts = torch.split(h, 1)
        return torch.cat([parts[0], parts[1]], dim=0).view(-1), n


def copied(source: Graph, make: Callable[[Graph, Node, Any, Any], Node]) -> Graph:
    """Return a copy of a graph in which ``make`` adds each node."""
    graph, env = Graph(), dict[Node, Node]()
    for node in source.nodes:
        args = torch.fx.node.map_aggregate(node.args, lambda leaf: env.get(leaf, leaf))
        kwargs = torch.fx.node.map_aggregate(node.kwargs, lambda leaf: env.get(leaf, leaf))
        env[node] = make(graph, node, args, kwargs)
    return graph


def by_append(graph: Graph, node: Node, args: Any, kwargs: Any) -> Node:
    return append_node(
        graph, node.name, node.op, node.target, args, kwargs, node.type, node.meta
    )  # fmt: skip


def by_create(graph: Graph, node: Node, args: Any, kwargs: Any) -> Node:
    made = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
    made.meta = copy.copy(node.meta)
    return made


def state_of(graph: Graph) -> dict[str, Any]:
    """Everything that ``create_node`` sets up, by node name."""
    namespace = graph._graph_namespace
    return {
        "nodes": [
            (n.name, n.op, n.target, str(n.args), str(n.kwargs), n.type) for n in graph.nodes
        ],
        "meta": [dict(n.meta) for n in graph.nodes],
        "users": [[u.name for u in n.users] for n in graph.nodes],
        "inputs": [[i.name for i in n.all_input_nodes] for n in graph.nodes],
        "length": len(graph.nodes),
        "names": sorted(namespace._used_names),
        "names of objects": {n.name: name for n, name in namespace._obj_to_name.items()},
        "found": {
            n.name: [f.name for f in graph.find_nodes(op=n.op, target=n.target)]
            for n in graph.nodes
            if n.op in ("placeholder", "call_function", "call_method", "call_module", "get_attr")
        },
        "sorted": [sorted(graph.nodes).index(n) for n in graph.nodes],
        "fields": sorted({f for n in graph.nodes for f in getattr(n, "__dict__", {})}),
    }


@guards(
    "._graph_namespace", "._used_names", "._obj_to_name", "._insert", "._find_nodes_lookup_table",
    "._len",
)  # fmt: skip
def test_appended_nodes_are_those_of_create_node():
    """graph.construction.append_node against ``Graph.create_node``: names, users, look-up, order, length."""
    look = "hierpart.graph.construction.append_node, which sets up what Graph.create_node does"
    source = trace(Layers()).graph
    namespace = source._graph_namespace
    has(source, "_graph_namespace", "_insert", "_find_nodes_lookup_table", "_len", look=look)
    has(namespace, "_used_names", "_obj_to_name", "create_name", look=look)

    mine, theirs = copied(source, by_append), copied(source, by_create)

    for what, wanted in state_of(theirs).items():
        assert state_of(mine)[what] == wanted, f"{what} differs: look at {look}"
    mine.lint()


def test_graphs_of_appended_nodes_can_be_changed_further():
    """After append_node the public API works: insert, erase, replace, rename, dead code, copy."""
    source = trace(Layers()).graph
    results = []
    for make in (by_append, by_create):
        gm = GraphModule(Layers(), copied(source, make))
        graph = gm.graph
        relu = graph.find_nodes(op="call_function", target=torch.relu)[0]
        with graph.inserting_after(relu):
            added = graph.call_function(torch.relu, (relu,))
        relu.replace_all_uses_with(
            added, delete_user_cb=lambda user, added=added: user is not added
        )
        graph.erase_node(graph.call_function(torch.sin, (added,)))
        graph.eliminate_dead_code()
        graph.lint()
        results.append([describe_graph(graph), describe_graph(copy.deepcopy(graph))])
    assert results[0] == results[1]


def describe_graph(graph: Graph) -> list[str]:
    return [node.format_node() or node.name for node in graph.nodes]


def test_taken_names_are_made_unique_as_create_node_does():
    """A second node of one name gets the name that ``create_node`` would give it."""
    mine, theirs = Graph(), Graph()
    for _ in range(3):
        append_node(mine, "x", "placeholder", "x")
        theirs.create_node("placeholder", "x", name="x")
    assert [n.name for n in mine.nodes] == [n.name for n in theirs.nodes] == ["x", "x_1", "x_2"]


def test_metadata_of_an_appended_node_is_its_own():
    """Nodes look their own meta up; assigning the attribute would file the node anew."""
    meta = {"val": 1}
    node = append_node(Graph(), "x", "placeholder", "x", meta=meta)
    node.meta["more"] = 2
    assert meta == {"val": 1}
    assert node.meta == {"val": 1, "more": 2}


@guards(
    "torch._dispatch.python.no_python_dispatcher",
    "torch.utils._python_dispatch._disable_current_modes", "._exit",
)  # fmt: skip
def test_blocks_are_checked_outside_of_all_modes():
    """trial._alone: real tensors run whatever mode is on; sandbox: a child ends without clean-up."""
    import os

    from torch._dispatch.python import no_python_dispatcher
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    has(os, "_exit", look="hierpart.sandbox.child_process._run")
    with FakeTensorMode():
        assert isinstance(torch.ones(1), FakeTensor)
        with _disable_current_modes(), no_python_dispatcher():
            assert type(torch.ones(1)) is torch.Tensor, (
                "look at hierpart.build.contained_compile._alone"
            )


@guards("._input_nodes")
def test_a_node_s_inputs_can_be_forged():
    """testing.generate.malformed makes edges that the public API refuses to make."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.neg, (x,))
    has(node, "_input_nodes", look="hierpart.testing.generate.malformed")
    assert list(node._input_nodes) == [x]


@guards("torch_tensorrt.dynamo.partitioning._adjacency_partitioner.TRTPartitioner")
def test_the_adjacency_partitioner_is_where_it_was():
    """testing.adapters wraps torch_tensorrt's class."""
    from hierpart.backends.tensorrt.library import library, problem

    if problem() is not None:
        pytest.skip(f"torch_tensorrt cannot be used: {problem()}")
    library()
    from torch_tensorrt.dynamo.partitioning import _adjacency_partitioner

    has(_adjacency_partitioner, "TRTPartitioner", look="hierpart.testing.adapters")


@guards("torch.fx._lazy_graph_module._LazyGraphModule")
def test_lazy_modules_generate_code_when_it_is_needed():
    """graph.construction.LazyModule: nothing is compiled before a call, and hooks fire once."""
    look = "hierpart.graph.construction.LazyModule"
    from torch.fx._lazy_graph_module import _LazyGraphModule

    has(_LazyGraphModule, "real_recompile", "_lazy_forward", "recompile", look=look)
    has(_LazyGraphModule, "_needs_recompile", "code", look=look)
    source = trace(Layers())
    module = lazy(source)
    assert module._needs_recompile(), f"code is generated at once; look at {look}"
    seen: list[str] = []
    module.register_forward_hook(lambda m, args, out: seen.append("hook"))
    same(module(vector(2, 3)), source(vector(2, 3)), "run")
    assert seen == ["hook"], f"hooks fire {len(seen)} times on the first call; look at {look}"
    assert not module._needs_recompile()
    assert "linear" in lazy(source).code
    told = inspect.signature(lazy(source).forward)
    assert told == inspect.signature(source.forward), f"the signature is hidden; look at {look}"


def lazy(source: GraphModule) -> LazyModule:
    module = LazyModule(copy.deepcopy(source.graph), "Block")
    share_attributes(
        source,
        module,
        [n.target for n in source.graph.nodes if n.op in ("call_module", "get_attr")],
    )
    return module


@guards("torch.fx.graph_module._copy_attr", "._graph")
def test_lazy_modules_hold_what_torch_s_own_hold():
    """graph.construction.LazyModule fills in what ``GraphModule.__init__`` and ``_copy_attr`` would."""
    look = "hierpart.graph.construction.LazyModule and hierpart.partition.splitting.block_module.share_attributes"
    source = trace(Layers())
    mine, theirs = lazy(source), GraphModule(source, copy.deepcopy(source.graph), "Block")
    generated = {"_code", "_lineno_map", "_prologue_start"}
    assert set(vars(theirs)) - set(vars(mine)) <= generated, look
    assert [
        t
        for t in vars(theirs)
        if type(vars(theirs)[t]) is not type(vars(mine).get(t)) and t not in generated
    ] == [], look
    assert mine.graph.owning_module is mine, look
    assert dict(mine.named_parameters()).keys() == dict(theirs.named_parameters()).keys(), look
    other = lazy(source)
    shared = [
        t for t, v in vars(mine).items() if isinstance(v, (dict, list, set)) and v is vars(other)[t]
    ]
    assert not shared, f"{shared} belong to two modules; look at {look}"


def test_lazy_modules_are_what_torch_calls_lazy():
    """Torch's own code (pickling, Dynamo) knows them by their class."""
    from torch.fx._lazy_graph_module import _LazyGraphModule, _make_graph_module

    assert issubclass(LazyModule, _LazyGraphModule)
    assert issubclass(LazyModule, GraphModule)
    assert callable(_make_graph_module)


@guards("._codegen")
def test_the_code_generator_of_a_graph_holds_its_signature():
    """splitting.parent_module._build_parent copies it: pytree specs and argument names are in there."""
    look = "hierpart.partition.splitting.parent_module._build_parent and hierpart.capture.graph_call._shell"
    gm = exported(Nested(), ({"a": vector(2)},))
    has(gm.graph, "_codegen", "set_codegen", look=look)
    graph = copied(gm.graph, by_create)
    graph.set_codegen(copy.deepcopy(gm.graph._codegen))
    args = ({"a": vector(2)},)
    module = GraphModule(gm, graph)
    module._in_spec, module._out_spec = gm._in_spec, gm._out_spec
    same(module(*args), gm(*args), look)


@guards("torch.fx.graph._PyTreeCodeGen", "torch.fx.graph._PyTreeInfo")
def test_a_graph_can_be_given_a_nested_calling_convention():
    """testing.generate gives it, generate.reproduce writes it down."""
    look = "hierpart.testing.generate.graphs and hierpart.testing.generate.reproduce"
    graph = Graph()
    leaf = graph.placeholder("tree_a")
    graph.output((graph.call_function(torch.relu, (leaf,)),))
    args = ({"a": vector(2)},)
    in_spec, out_spec = tree_structure((args, {})), tree_structure({"b": 0})
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(["tree"], in_spec, out_spec)))
    same(GraphModule({}, graph)(*args), {"b": torch.relu(args[0]["a"])}, look)
    fields = ("orig_args", "in_spec", "out_spec")
    assert _PyTreeInfo._fields == fields, f"_PyTreeInfo has {_PyTreeInfo._fields}; look at {look}"
    assert graph._codegen.pytree_info.orig_args == ["tree"], look
    assert isinstance(exported(Nested(), args).graph._codegen, _PyTreeCodeGen), look


class Nested(nn.Module):
    def forward(self, tree):
        return {"b": torch.relu(tree["a"])}


@guards("._tracer_cls")
def test_graphs_remember_their_tracer_class():
    """splitting.block_module.tracer_class passes it on where a copy can make one without arguments."""
    has(Graph(), "_tracer_cls", look="hierpart.partition.splitting.block_module.tracer_class")
    assert trace(Nested_()).graph._tracer_cls is torch.fx.Tracer
    assert "tracer_cls" in inspect.signature(Graph.__init__).parameters


class Nested_(nn.Module):  # noqa: N801 - a second small module
    def forward(self, x):
        return torch.relu(x)


@guards("._func_name")
def test_the_code_generator_names_the_function():
    """runtime.flat_function._Boxed overrides ``gen_fn_def`` and uses the function's name."""
    from torch.fx.graph import CodeGen

    look = "hierpart.runtime.flat_function._Boxed"
    has(CodeGen(), "_func_name", "gen_fn_def", look=look)
    parameters = list(inspect.signature(CodeGen.gen_fn_def).parameters)
    assert parameters[:3] == ["self", "free_vars", "maybe_return_annotation"], look
    gm = trace(Nested_())
    assert f"def {gm.graph._codegen._func_name}(self, x" in gm.code


def test_nodes_of_impure_modules_survive_dead_code_removal():
    """splitting.block_module.build_block sets ``_is_impure``, which ``Node.is_impure`` reads."""
    for impure in (False, True):
        graph, root = Graph(), nn.Module()
        root.block = nn.ReLU()
        root.block._is_impure = impure
        x = graph.placeholder("x")
        graph.call_module("block", (x,))
        graph.output(x)
        gm = GraphModule(root, graph)
        gm.graph.eliminate_dead_code()
        kept = bool(gm.graph.find_nodes(op="call_module"))
        assert kept == impure, (
            "Node.is_impure reads another name; look at hierpart.partition.splitting.block_module.IMPURE"
        )


@guards("torch.fx.node._side_effectful_functions")
def test_functions_with_side_effects_are_listed():
    """effects._side_effectful: assertions, prints, regions and profiler marks."""
    found = torch.fx.node._side_effectful_functions
    look = "hierpart.graph.node.op_effects._side_effectful"
    wanted = {torch._assert, torch._C._set_grad_enabled, aten._assert_async.msg}
    assert wanted <= set(found), f"{wanted - set(found)} left the list; look at {look}"


@guards("torch.fx.node._get_qualified_name")
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "torch.relu"), (torch.nn.functional.gelu, "torch._C._nn.gelu"),
        (torch.nn.functional.dropout, "torch.nn.functional.dropout"), (len, "len"),
        (torch.add, "torch.add"), (sys.getsizeof, "sys.getsizeof"),
    ],
)  # fmt: skip
def test_qualified_names(function, name):
    """opnames.qualified_name: the names that users write for functions."""
    got = torch.fx.node._get_qualified_name(function)
    assert got == name, (
        "support maps spell ops like this; look at hierpart.graph.node.op_names.qualified_name"
    )


def test_shape_propagation_records_a_type_by_this_name():
    """graph.node.values.kind_of and bytes_of know ShapeProp's records by their class's name."""
    gm = trace(Layers())
    ShapeProp(gm).propagate(vector(2, 3))
    relu = gm.graph.find_nodes(op="call_function", target=torch.relu)[0]
    record = relu.meta["tensor_meta"]
    look = "hierpart.graph.node.values.kind_of and bytes_of"
    assert type(record).__name__ == "TensorMetadata", look
    has(record, "shape", "dtype", look=look)


@guards("torch.fx.passes.shape_prop._extract_tensor_metadata")
def test_tensor_metadata_can_be_extracted():
    """testing.generate.metadata writes the records that ShapeProp writes."""
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    record = _extract_tensor_metadata(torch.ones(2, 3))
    assert (tuple(record.shape), record.dtype) == ((2, 3), torch.float32)


# ------------------------------------------------------------------ torch.fx: the splitter's base

METHODS = (
    "put_nodes_into_subgraphs", "remove_small_acc_subgraphs", "tag", "split", "__call__",
    "find_deps", "get_node_submodule_map", "node_support_preview", "split_preview",
    "generate_split_results", "_lower_model_to_backend", "find_reverse_deps",
)  # fmt: skip
FIELDS = (
    "module", "operator_support", "settings", "sample_input", "acc_nodes", "fusions", "deps",
    "non_acc_submodule_name", "_node_submodule_map", "_return_tuple", "tags",
)  # fmt: skip


@guards("torch.fx.passes.splitter_base._SplitterBase")
def test_the_splitters_base_has_the_methods_that_are_overridden():
    look = "hierpart.partition.splitter.HierarchicalAdjacencyPartitioner"
    has(splitter_base._SplitterBase, *METHODS, look=look)
    assert list(inspect.signature(splitter_base._SplitterBase.split).parameters) == [
        "self", "remove_tag",
    ], look  # fmt: skip
    fields = list(splitter_base.Subgraph.__dataclass_fields__)
    assert fields[:2] == ["is_acc", "nodes"], f"Subgraph has {fields}; look at {look}"


def assigned_in_init(cls: type) -> set[str]:
    """Return the names that a class's ``__init__`` assigns to ``self``."""
    source = inspect.getsource(cls.__init__)
    tree = ast.parse("class C:\n" + source if source[0] == " " else source)
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_the_splitters_base_sets_no_field_that_we_do_not_set():
    """Its ``__init__`` runs the model and is not called; the partitioner sets all its fields."""
    look = "hierpart.partition.splitter.HierarchicalAdjacencyPartitioner.__init__"
    theirs = assigned_in_init(splitter_base._SplitterBase)
    assert set(FIELDS) <= theirs | {"sample_input"}, (
        f"{set(FIELDS) - theirs} is gone; look at {look}"
    )
    mine = hierpart.HierarchicalAdjacencyPartitioner(
        trace(Layers()), backend_support_map={"a": {torch.relu}}, backend_priority=["a"]
    )
    missing = {name for name in theirs if not hasattr(mine, name)}
    assert not missing, f"_SplitterBase sets {sorted(missing)} too; look at {look}"


def test_the_splitters_settings_have_no_field_that_ours_lack():
    """Torch's settings class parses ``sys.argv``; partitioner.SplitterSettings stands in for it."""
    theirs = assigned_in_init(splitter_base._SplitterSettingBase)
    mine = hierpart.HierarchicalAdjacencyPartitioner(
        trace(Layers()), backend_support_map={"a": {torch.relu}}, backend_priority=["a"]
    ).settings
    missing = {n for n in theirs if not hasattr(mine, n)}
    assert not missing, f"settings got {sorted(missing)}: look at partitioner.SplitterSettings"


# ------------------------------------------------------------------ operators


@guards("torch._ops")
def test_classes_of_operators():
    """Kinds of targets are told by class all over: effects, values, opnames, controlflow."""
    look = "every isinstance(..., torch._ops.X) in hierpart"
    has(torch._ops, "OpOverload", "OpOverloadPacket", "HigherOrderOperator", look=look)
    assert isinstance(aten.add.Tensor, torch._ops.OpOverload)
    assert isinstance(aten.add, torch._ops.OpOverloadPacket)
    assert isinstance(torch.ops.higher_order.cond, torch._ops.HigherOrderOperator)
    assert str(aten.add.Tensor) == "aten.add.Tensor"
    assert str(aten.add) == "aten.add"
    assert aten.add.Tensor.name() == "aten::add.Tensor"
    assert torch.ops.higher_order.cond.__name__ == "cond"
    assert "Tensor" in aten.add.overloads()
    assert aten.add.Tensor.namespace == "aten"


@guards("torch._ops._higher_order_ops")
def test_higher_order_ops_are_listed_by_name():
    """controlflow.check_modes checks names against the list."""
    known = torch._ops._higher_order_ops
    look = "hierpart.graph.node.control_flow.check_modes"

    assert {"cond", "while_loop", "scan", "map_impl"} <= set(known), look


@guards("._schema")
def test_schemas_tell_writes_aliases_and_kinds():
    """node.effects._schema_of and values._kind_of_schema read these fields."""
    schema = aten.add_.Tensor._schema
    first, second, alpha = schema.arguments
    look = (
        "hierpart.graph.node.op_effects._schema_of and hierpart.graph.node.values._kind_of_schema"
    )
    has(schema, "name", "arguments", "returns", "is_mutable", look=look)
    has(first, "name", "type", "alias_info", "kwarg_only", look=look)
    assert (schema.name, first.name, alpha.kwarg_only) == ("aten::add_", "self", True), look
    assert first.alias_info.is_write, look
    assert second.alias_info is None, look
    view = aten.view.default._schema
    assert view.arguments[0].alias_info is not None, look
    assert not view.arguments[0].alias_info.is_write, look
    assert view.returns[0].alias_info is not None, look
    kinds = {
        aten.sin.default: ["Tensor"], aten.split.Tensor: ["List[Tensor]"],
        aten.sort.default: ["Tensor", "Tensor"], aten.item.default: ["number"],
        aten.sym_size.int: ["int"], aten._assert_async.msg: [],
    }  # fmt: skip
    for op, wanted in kinds.items():
        assert [str(r.type) for r in op._schema.returns] == wanted, f"{op}: look at {look}"


def test_tags_of_operators():
    """Effects and hazards read three tags."""
    look = "hierpart.graph.node.op_effects._schema_of and hierpart.graph.hazards.depends_on_data"
    assert torch.Tag.nondeterministic_seeded in aten.rand.default.tags, look
    assert torch.Tag.inplace_view in aten.t_.default.tags, look
    assert torch.Tag.pointwise in aten.sin.default.tags, look


@guards("torch._C", "torch._C._dispatch_get_all_op_names")
def test_names_of_all_operators():
    """schemas._dispatched and opnames._registered: what exists."""
    names = torch._C._dispatch_get_all_op_names()
    look = "hierpart.graph.node.schemas._dispatched and hierpart.graph.node.op_names"
    assert {"aten::add.Tensor", "aten::relu", "prims::convert_element_type"} <= set(names), look
    assert "aten::relu.default" not in names, f"names of default overloads have changed: {look}"


@guards("torch._C._dispatch_has_kernel_for_dispatch_key")
def test_composite_operators_can_be_told():
    """effects._is_composite: aliases that no annotation describes."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key
    look = "hierpart.graph.node.op_effects._is_composite"
    assert composite("aten::type_as", "CompositeImplicitAutograd"), look
    assert not composite("aten::sin", "CompositeImplicitAutograd"), look


@guards("torch._C._set_grad_enabled", "torch._assert", "torch._check", "torch._C._nn")
def test_functions_that_graphs_hold():
    """Marks and assertions by the names that effects.py knows."""
    look = "hierpart.graph.node.effects.REGION_MARKERS and _function_effect"
    has(torch._C, "_set_grad_enabled", look=look)
    has(torch.amp.autocast_mode, "_enter_autocast", "_exit_autocast", look=look)
    names = [f.__name__ for f in (torch._C._set_grad_enabled, torch._assert, torch._check)]
    assert names == ["_set_grad_enabled", "_assert", "_check"], look
    assert torch.nn.functional.gelu.__module__ == "torch._C._nn", look


def test_the_modules_of_pure_functions():
    """effects.PURE_MODULES names the homes of functions without an aten name."""
    from hierpart.graph.node.op_tables import PURE_MODULES

    for function in (torch.nn.functional.gelu, torch.linalg.norm, torch.special.erf, torch.fft.fft):
        home = function.__module__ or ""
        assert home.startswith(PURE_MODULES) or home == "torch", (
            f"{function.__name__} lives in {home!r}; look at hierpart.graph.node.effects.PURE_MODULES"
        )


def test_what_torch_export_leaves_in_a_module():
    """effects, split and graph know the input checks by their class and module name."""
    gm = torch.export.export(Nested_(), (vector(2),), strict=False).module()
    look = "hierpart.graph.node.effects._module_effect and hierpart.partition.splitting.parent_module._inherit (GuardsFn)"
    (call,) = gm.graph.find_nodes(op="call_module")
    assert type(gm.get_submodule(call.target)).__name__ == "GuardsFn", look
    has(gm, "_in_spec", "_out_spec", look="hierpart.capture.captured.flat_arguments")


def test_the_stack_of_modules_in_metadata():
    """owners.assignment._is_inside reads paths from ``nn_module_stack``."""
    gm = exported(nn.Sequential(nn.Sequential(nn.ReLU())), (vector(2),))
    relu = gm.graph.find_nodes(op="call_function", target=aten.relu.default)[0]
    paths = [entry[0] for entry in relu.meta["nn_module_stack"].values()]
    assert paths == ["", "0", "0.0"], "look at hierpart.partition.owners.exclusions._is_inside"


def test_data_dependent_sizes_are_marked_in_metadata():
    """values.binds_symbols reads ``unbacked_bindings``."""

    class Nonzero(nn.Module):
        def forward(self, x):
            return torch.nonzero(x).shape[0] + x

    gm = exported(Nonzero(), (vector(2),))
    nonzero = gm.graph.find_nodes(op="call_function", target=aten.nonzero.default)[0]
    assert nonzero.meta.get("unbacked_bindings"), "look at hierpart.graph.node.values.binds_symbols"


# ------------------------------------------------------------------ tensors and symbolic sizes


@functools.cache
def dynamic_input() -> torch.Tensor:
    """A fake tensor of shape ``[n, 3]``."""
    sizes = ({0: torch.export.Dim("n", min=2, max=9)},)
    gm = exported(Nested_(), (vector(4, 3),), dynamic=sizes)
    return gm.graph.find_nodes(op="placeholder")[0].meta["val"]


@guards("._has_symbolic_sizes_strides")
def test_symbolic_sizes_can_be_told_without_asking_them():
    """values.bytes_of_value and wiring: nothing here guards on a size."""
    fake, look = (
        dynamic_input(),
        "hierpart.graph.node.values.bytes_of_value and hierpart.partition.splitting.wiring",
    )
    has(torch.Tensor, "_has_symbolic_sizes_strides", look=look)
    assert fake._has_symbolic_sizes_strides, look
    assert not vector(2)._has_symbolic_sizes_strides, look


def test_symbolic_sizes_tell_hint_expression_and_value():
    """values.hint, symbol_of, symbols_in."""
    size, look = (
        dynamic_input().shape[0],
        "hierpart.graph.node.values (hint, symbol_of, symbols_in)",
    )
    has(size.node, "expr", "hint", "has_hint", "maybe_as_int", "shape_env", look=look)
    assert size.node.expr.is_Symbol, look
    assert (size.node.has_hint(), size.node.hint, size.node.maybe_as_int()) == (True, 4, None), look
    assert size.node.expr.free_symbols == {size.node.expr}, look


def test_free_unbacked_symbols_are_found():
    """hazards._has_unbacked."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    assert not free_unbacked_symbols(dynamic_input())


@guards("._cdata")
def test_storages_have_an_address_that_views_share():
    """hazards.storage_key: views of real and of fake tensors, recorded by export too."""
    look = "hierpart.graph.hazards.storage_key"
    base = vector(4)
    assert base.untyped_storage()._cdata == base[1:].untyped_storage()._cdata, look
    assert base.untyped_storage()._cdata != base.clone().untyped_storage()._cdata, look
    assert type(base.untyped_storage()._cdata) is int, look

    class Views(nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            return y.view(-1), y

    gm = exported(Views(), (vector(2, 2),))
    sin, view = (
        n.meta["val"].untyped_storage()._cdata for n in gm.graph.nodes if n.op == "call_function"
    )
    assert sin == view, f"recorded views do not share a storage; look at {look}"


@guards("._version")
def test_writes_raise_a_tensors_version():
    """oracle.record and reading.snapshot see writes by it."""
    x = vector(2)
    before = x._version
    x.add_(1)
    assert x._version == before + 1


@guards("._check_frozen")
def test_the_shape_environment_asks_before_each_guard():
    """symbols.sizes_stay_open puts its own check in place of ``ShapeEnv._check_frozen``."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    look = "hierpart.graph.node.symbols.sizes_stay_open"
    has(ShapeEnv, "_check_frozen", look=look)
    assert list(inspect.signature(ShapeEnv._check_frozen).parameters)[:3] == [
        "self", "expr", "concrete_val",
    ], look  # fmt: skip
    size = dynamic_input.__wrapped__().shape[0]
    env, asked = size.node.shape_env, []
    env._check_frozen = lambda expr, value: asked.append((str(expr), value))
    try:
        assert bool(size == 4)
    finally:
        del env._check_frozen
    assert asked, f"a guard was recorded without asking; look at {look}"


@guards(
    "torch.utils._sympy.functions.Mod", "torch.utils._sympy.functions.PythonMod",
    "torch.utils._sympy.printers.PythonPrinter",
)  # fmt: skip
def test_expressions_of_sizes_print_as_python():
    """symbols._print and _fixes_a_size."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
    from torch.utils._sympy.printers import PythonPrinter

    n = sympy.Symbol("n", integer=True)
    code = PythonPrinter().doprint(FloorDiv(n, 2) + Mod(n, 3) + PythonMod(n, 5))
    assert eval(code, {"n": 17}) == 17 // 2 + 17 % 3 + 17 % 5, (
        "look at hierpart.graph.node.symbols._print"
    )


@guards("torch._guards.detect_fake_mode", "torch._subclasses.FakeTensorMode",
        "torch._subclasses.fake_tensor.FakeTensorMode")  # fmt: skip
def test_fake_modes_are_found_from_values():
    """graph.canonical_form._fake and literals: the mode of the graph's own values."""
    from torch._guards import detect_fake_mode
    from torch._subclasses import FakeTensorMode

    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(2), static_shapes=True)
    assert detect_fake_mode([fake]) is mode
    assert detect_fake_mode([torch.ones(2)]) is None
    assert type(FakeTensorMode(allow_non_fake_inputs=True)) is FakeTensorMode


@guards("torch._guards.tracing", "torch._guards.TracingContext")
def test_tracing_contexts_can_be_left():
    """build.block_compile._isolated compiles a block outside an ambient torch.compile."""
    from torch._guards import TracingContext, tracing

    context = TracingContext(None)
    with tracing(context):
        assert TracingContext.try_get() is context
        with tracing(None):
            assert TracingContext.try_get() is None
        assert TracingContext.try_get() is context


@guards("torch._C._DisableAutocast", "torch._C._is_any_autocast_enabled")
def test_autocast_can_be_switched_off_around_a_call():
    """runtime.CompiledModule.forward and attempt._isolated."""
    with torch.autocast("cpu"):
        assert torch._C._is_any_autocast_enabled()
        with torch._C._DisableAutocast():
            assert not torch._C._is_any_autocast_enabled()
            assert (vector(2, 2) @ vector(2, 2)).dtype is torch.float32


# ------------------------------------------------------------------ nn.Module


@guards(
    "._parameters", "._modules", "._buffers", "._non_persistent_buffers_set", "._forward_hooks",
    "._forward_pre_hooks",
)  # fmt: skip
def test_the_dictionaries_of_a_module():
    """splitting.parent_module._inherit, blocks.keep_buffer_flags, effects and runtime use them by name."""
    module = nn.BatchNorm1d(2)
    module.register_buffer("extra", torch.ones(1), persistent=False)
    look = "hierpart.partition.splitting.parent_module._inherit, hierpart.partition.splitting.block_module.keep_buffer_flags, hierpart.runtime.compiled_module"
    assert set(module._parameters) == {"weight", "bias"}, look
    assert set(module._buffers) == {"running_mean", "running_var", "num_batches_tracked", "extra"}
    assert module._non_persistent_buffers_set == {"extra"}, look
    assert nn.Sequential(module)._modules == {"0": module}, look


def test_the_fields_that_hold_hooks():
    """splitting.parent_module._inherit copies dictionaries whose names end in these words."""
    ends = ("_hooks", "_with_kwargs", "_always_called")
    module = nn.Module()
    plain = {k for k, v in vars(module).items() if isinstance(v, dict)}
    hooks = {k for k in plain if k.endswith(ends)}
    other = plain - hooks - {"_parameters", "_buffers", "_modules"}
    assert not other, f"nn.Module got {sorted(other)}: are these hooks? look at split._inherit"
    before = {k: len(vars(module)[k]) for k in hooks}
    module.register_forward_pre_hook(lambda m, a, k: None, with_kwargs=True)
    module.register_forward_hook(lambda m, a, k, o: None, with_kwargs=True, always_call=True)
    grown = {k for k in hooks if len(vars(module)[k]) > before[k]}
    assert grown == {
        "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks",
        "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    }, "hooks are held elsewhere; look at split._inherit"  # fmt: skip


def test_the_fields_of_a_graph_module():
    """splitting.parent_module._inherit leaves these to the new module and copies the rest."""
    gm = trace(Nested_())
    fields = set(vars(gm)) - set(vars(nn.Module()))
    known = {
        "_graph", "_code", "_lineno_map", "_prologue_start", "_tracer_cls", "_tracer_extras", "meta",
        "_replace_hooks", "_create_node_hooks", "_erase_node_hooks", "_deepcopy_hooks",
        "shape_env",
    }  # fmt: skip
    assert fields <= known, f"GraphModule got {sorted(fields - known)}; look at split._inherit"
    assert {"_graph", "_code", "meta"} <= fields


# ------------------------------------------------------------------ pytrees


@guards(
    "torch.utils._pytree", "torch.utils._pytree.tree_leaves", "torch.utils._pytree.tree_map_only"
)
def test_pytrees():
    """capture, canonical, line and the kit use these functions."""
    from torch.utils import _pytree

    look = (
        "hierpart.capture.captured, hierpart.graph.canonical_form, hierpart.partition.plan_assembly"
    )
    has(_pytree, "tree_flatten", "tree_leaves", "tree_map_only", "TreeSpec", look=look)
    leaves, spec = _pytree.tree_flatten({"a": [1, (2,)]})
    assert (leaves, type(spec)) == ([1, 2], _pytree.TreeSpec) or isinstance(spec, _pytree.TreeSpec)
    assert _pytree.tree_map_only(int, lambda n: n + 1, [1, "x"]) == [2, "x"]


# ------------------------------------------------------------------ compilers, without compiling


@guards("torch._inductor.standalone_compile")
def test_inductors_way_in_takes_our_arguments():
    """backends.inductor.InductorBackend.compile."""
    from torch._inductor import standalone_compile

    signature = inspect.signature(standalone_compile)
    signature.bind(
        None, [], dynamic_shapes="from_graph", aot=True, donate_graph_module=True,
        options={"config_patches": {}},
    )  # fmt: skip
    source = inspect.getsource(sys.modules["torch._inductor.standalone_compile"])
    assert '"from_graph"' in source, "look at hierpart.backends.inductor.InductorBackend.compile"


@guards("torch._inductor.config", "torch._inductor.list_mode_options")
def test_inductors_settings_and_modes():
    """backends.inductor.check_options and dynamo._with_mode."""
    from torch._inductor import config, list_mode_options

    assert "max_autotune" in config.get_config_copy(), "look at InductorBackend.check_options"
    modes = list_mode_options()
    known = {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
    assert known <= set(modes), "look at hierpart.dynamo._with_mode"
    assert set(list_mode_options("max-autotune")) <= set(config.get_config_copy())


@guards("torch._inductor.runtime.cache_dir_utils.temporary_cache_dir")
def test_inductors_caches_go_to_another_folder_for_a_while(tmp_path, monkeypatch):
    """backends.inductor._cached_in."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, temporary_cache_dir

    look = "look at hierpart.backends.inductor._cached_in"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "before"))
    with temporary_cache_dir(str(tmp_path / "meanwhile")):
        assert cache_dir() == str(tmp_path / "meanwhile"), look
    assert cache_dir() == str(tmp_path / "before"), look


@guards(
    "torch._functorch.config",
    "torch._functorch.partitioners",
    "torch._dynamo.backends.common.aot_autograd",
)
def test_aot_autograds_way_in_takes_our_arguments():
    """dynamo.Backend.__call__."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config, partitioners
    from torch._functorch.aot_autograd import aot_module_simplified

    look = "hierpart.dynamo.Backend"
    has(config, "force_autograd_cache", "patch", look=look)
    has(partitioners, "min_cut_rematerialization_partition", "default_partition", look=look)
    parameters = inspect.signature(aot_module_simplified).parameters
    ours = {
        "fw_compiler", "bw_compiler", "inference_compiler", "decompositions", "partition_fn",
        "keep_inference_input_mutations",
    }  # fmt: skip
    assert ours <= set(parameters), f"{ours - set(parameters)} is gone; look at {look}"
    assert callable(aot_autograd(fw_compiler=None))


@guards("._boxed_call")
def test_boxed_calls_are_marked_by_this_name():
    """dynamo, attempt and backends.inductor mark and read it."""
    from torch._functorch._aot_autograd.utils import make_boxed_func

    assert make_boxed_func(lambda x: x)._boxed_call is True, "look at hierpart.dynamo._boxed"


@guards("torch._decomp.core_aten_decompositions")
def test_the_core_aten_decompositions_are_a_table_by_overload():
    """capture.aot_decompositions."""
    from torch._decomp import core_aten_decompositions

    table = core_aten_decompositions()
    assert aten.addcdiv.default in table, (
        "look at hierpart.capture.decompositions.aot_decompositions"
    )


def test_dynamos_control_flow_exceptions():
    """build.block_compile.let_through passes them on."""
    import torch._dynamo.exc as exc

    look = "hierpart.build.block_compile.let_through"
    has(exc, "RestartAnalysis", "SkipFrame", "ShortenTraceback", "BackendCompilerFailed", look=look)
    assert "inner_exception" in inspect.getsource(exc.BackendCompilerFailed), look


@guards("torch.utils._python_dispatch", "torch.utils._python_dispatch.TorchDispatchMode")
def test_wrapper_subclasses_can_be_told_and_ops_watched():
    """backends.inductor.support._layout_refusal and testing.record."""
    from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

    assert not is_traceable_wrapper_subclass(vector(2))
    seen: list[Any] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = vector(2)
    with Watch():
        torch.relu(x)
    assert seen == [aten.relu.default]


@guards(
    "torch.utils._python_dispatch._get_current_dispatch_mode", "torch._is_functional_tensor",
    "torch._C._functorch",
)  # fmt: skip
def test_traced_and_wrapped_tensors_can_be_told_from_plain_ones():
    """branch.are_plain: compiled blocks run on real tensors outside any mode only."""
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    look = "hierpart.runtime.branch_module.are_plain"
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    assert _get_current_dispatch_mode() is None, look
    with FakeTensorMode() as mode:
        assert _get_current_dispatch_mode() is mode, look
    x, seen = vector(2), []
    assert not wrapped(x), look
    assert not torch._is_functional_tensor(x), look
    torch.func.vmap(lambda row: seen.append(wrapped(row)) or row)(x)
    torch.func.functionalize(lambda t: seen.append(wrapped(t)) or t)(x)
    assert seen == [True, True], look
    assert torch._is_functional_tensor(torch._to_functional_tensor(x)), look


@guards("torch._logging._internal.trace_structured")
def test_the_structured_trace_takes_our_artefacts():
    """trace.trace_artefact."""
    from torch._logging._internal import trace_structured

    signature = inspect.signature(trace_structured)
    signature.bind("artifact", metadata_fn=dict, payload_fn=str, expect_trace_id=False)


def test_flop_formulas_are_by_packet():
    """flops.FlopTable."""
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    look = "hierpart.report.flops"
    assert aten.mm in flop_registry, look
    assert aten.convolution in flop_registry, look
    with FlopCounterMode(display=False) as counter:
        aten.linear.default(torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta"))
    assert counter.get_total_flops() == 2 * 2 * 3 * 4, look


@guards(
    "torch.utils._sympy.value_ranges.ValueRanges",
    "torch.utils._sympy.value_ranges.bound_sympy",
    "torch.utils._sympy.functions",
    "torch.utils._sympy.numbers.int_oo",
)
def test_ranges_of_expressions_are_told():
    """backends.tensorrt.ranges and artefact.expressions._classes."""
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy import functions
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    assert str(int_oo) == "int_oo", "look at hierpart.artefact.expressions._classes"
    s = sympy.Symbol("s", integer=True)
    found = bound_sympy(17 * s + 1, {s: ValueRanges(2, 8)})
    assert (found.lower, found.upper) == (35, 137), "look at hierpart.backends.tensorrt.ranges"
    assert hasattr(ShapeEnv(), "var_to_range"), "look at hierpart.backends.tensorrt.support"
    assert issubclass(functions.FloorDiv, sympy.Basic), (
        "look at hierpart.artefact.expressions._classes"
    )


@guards("torch._inductor.standalone_compile.CompiledArtifact", "torch._subclasses.FakeTensor")
def test_compiled_blocks_can_be_written():
    """backends.inductor_code, and what tells a weight from an example."""
    from torch._inductor.standalone_compile import CompiledArtifact
    from torch._subclasses import FakeTensor

    has(CompiledArtifact, "save", "load", look="hierpart.backends.inductor.code")
    assert issubclass(FakeTensor, torch.Tensor)


# ------------------------------------------------------------------ torch_tensorrt


@guards(
    "torch.cuda._CudaDeviceProperties", "torch_tensorrt.dynamo._settings.CompilationSettings",
    "torch_tensorrt.dynamo.conversion._TRTInterpreter.TRTInterpreter",
    "._construct_trt_network_def", "._create_timing_cache", "._from", "._output_names",
    "._populate_trt_builder_config", "._save_timing_cache",
)  # fmt: skip
def test_what_builds_engines_is_there():
    """backends.tensorrt; what an interpreter holds is looked at in test_tensorrt.py."""
    from hierpart.backends.tensorrt import library

    assert hasattr(torch.cuda, "_CudaDeviceProperties"), (
        "look at hierpart.backends.tensorrt.library"
    )
    if (why := library.problem()) is not None:
        pytest.skip(why)
    trt = library.library()
    from torch_tensorrt.dynamo._settings import CompilationSettings
    from torch_tensorrt.dynamo.conversion._TRTInterpreter import TRTInterpreter

    look = "hierpart.backends.tensorrt.network and engine"
    has(TRTInterpreter, "_construct_trt_network_def", "_populate_trt_builder_config", look=look)
    has(TRTInterpreter, "_create_timing_cache", "_save_timing_cache", "output", look=look)
    has(trt.dtype, "_from", look=look)
    assert "truncate_double" in inspect.signature(CompilationSettings).parameters, look


# ------------------------------------------------------------------ the inventory

PACKAGE = Path(hierpart.__file__).parent


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


@functools.cache
def sources() -> dict[str, ast.Module]:
    return {
        p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text())
        for p in sorted(PACKAGE.rglob("*.py"))
    }


def names_of_our_own(trees: list[ast.Module]) -> set[str]:
    """Private names that the library itself defines: functions, classes, variables, attributes."""
    found: set[str] = set()
    for node in (n for tree in trees for n in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            found |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
    return {n for n in found if is_private(n)}


def private_names(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    """Yield each private name of torch that a module uses, operators of ``torch.ops`` left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in full if any(map(is_private, name.split("."))))
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        base = ast.unparse(node.value)
        if base.startswith("torch") and not base.startswith("torch.ops"):
            yield f"{base}.{node.attr}"
        elif node.attr not in ours and base not in ("aten", "torch.ops.aten", "modes"):
            yield f".{node.attr}"


def test_every_private_name_has_a_guard():
    """A private name that the library starts to use needs a test in this file."""
    ours = names_of_our_own(list(sources().values()))
    used: dict[str, list[str]] = {}
    for name, tree in sources().items():
        for found in private_names(tree, ours):
            used.setdefault(found, []).append(name)

    unguarded = {name: sorted(set(files)) for name, files in used.items() if name not in GUARDED}

    assert not unguarded, "write a guard (@guards) for each of these"
    assert len(used) > 40


def test_no_guard_outlives_its_use():
    """A guard whose name nobody uses any more can go."""
    text = "\n".join((PACKAGE / name).read_text() for name in sources())
    gone = [name for name in sorted(GUARDED) if name.rsplit(".", 1)[-1] not in text]
    assert not gone


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("from torch._x import y", ["torch._x.y"]), ("torch.fx._z.call()", ["torch.fx._z"]),
        ("node._hidden", ["._hidden"]), ("from torch.fx import Node", []), ("aten._softmax", []),
        ("self._ours", []), ("x.__dict__", []),
    ],
)  # fmt: skip
def test_the_inventory_sees_private_names(code, wanted):
    """The inventory itself can fail."""
    assert list(private_names(ast.parse(code), {"_ours"})) == wanted


def test_descriptions_cover_private_state():
    """The kit's description of a module tells two graphs apart that differ in one target."""
    one, other = trace(Nested_()), trace(Nested_())
    assert describe(one) == describe(other)
    other.graph.find_nodes(op="call_function", target=torch.relu)[0].target = torch.sin
    assert describe(one) != describe(other)
