"""Control flow: modes, split branches, attributes and symbols (C1, C6, C7, C8 at every level)."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.fx import GraphModule

import hierpart
from hierpart import hierarchical_adjacency_partition
from hierpart.graph.facts import analyse

LAYERS, WIDTH, LENGTH = 8, 8, 5


class CachedAttention(nn.Module):
    """Keys and values come from the cache if it holds anything, else they are computed."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, cache):
        def cached(x, cache):
            return cache[0] + 0.0, cache[1] + 0.0

        def computed(x, cache):
            return self.key(x), self.value(x)

        k, v = torch.cond((cache != 0).any(), cached, computed, (x, cache))
        weights = torch.softmax(self.query(x) @ k.transpose(0, 1) / WIDTH**0.5, -1)
        return torch.relu(x + weights @ v)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(CachedAttention() for _ in range(LAYERS))

    def forward(self, x, caches):
        for i, layer in enumerate(self.layers):
            x = layer(x, caches[i])
        return x


def decoder() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = Decoder().eval()
    x = torch.randn(LENGTH, WIDTH)
    empty, full = torch.zeros(LAYERS, 2, LENGTH, WIDTH), torch.randn(LAYERS, 2, LENGTH, WIDTH)
    return model, (x, empty), (x, full)


def exported(model: nn.Module, args, **kwargs) -> GraphModule:
    program = torch.export.export(model, args, strict=False, **kwargs).run_decompositions()
    return program.module(check_guards=False)


def every_op(gm: GraphModule) -> set:
    found = set()
    for module in gm.modules():
        if isinstance(module, GraphModule):
            found |= {n.target for n in module.graph.nodes if n.op == "call_function"}
    return found - {operator.getitem}


def accelerated(gm: GraphModule) -> list[str]:
    return [name for name, _ in gm.named_modules() if "_run_on_acc_" in name.rsplit(".", 1)[-1]]


def conds(gm: GraphModule) -> list[torch.fx.Node]:
    return [n for n in gm.graph.nodes if n.target is torch.ops.higher_order.cond]


def test_a_decoder_whose_conds_are_taken_whole_is_one_block():
    model, empty, full = decoder()
    gm = exported(model, empty)
    support = {"engine": every_op(gm) | {operator.getitem}}

    result, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map=support, backend_priority=["engine"]
    )

    assert [b.backend for b in result.meta["hierpart"].blocks] == ["engine"]
    assert not [n for n in result.graph.nodes if n.op == "get_attr"]  # no branch in the parent
    block = result.get_submodule("_run_on_acc_engine_0")
    assert len(conds(block)) == LAYERS
    for node in block.graph.nodes:
        if node.op == "placeholder":
            assert isinstance(node.meta["val"], torch.Tensor)
    for args in (empty, full):
        assert torch.equal(result(*args), gm(*args))
        torch.testing.assert_close(result(*args), model(*args))


def test_a_decoder_whose_conds_are_refused_has_accelerated_branches():
    model, empty, full = decoder()
    gm = exported(model, empty)
    support = {"engine": every_op(gm) - {torch.ops.higher_order.cond}}

    result, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map=support, backend_priority=["engine"]
    )

    plan = result.meta["hierpart"]
    assert (
        sum("cond" in plan.ops[n] for b in plan for n in b.nodes if b.backend == "eager") == LAYERS
    )
    assert len(plan.nested) == 2 * LAYERS
    assert all([b.backend for b in nested.plan] == ["engine"] for nested in plan.nested)
    assert sum("_graph_" in name for name in accelerated(result)) == 2 * LAYERS
    for args in (empty, full):
        assert torch.equal(result(*args), gm(*args))
        torch.testing.assert_close(result(*args), model(*args))


def nested_model() -> nn.Module:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, c, x):
            def yes(c, x):
                def deep_yes(x):
                    return torch.relu(x).sin() + 1

                def deep_no(x):
                    return torch.relu(x) * 2

                return torch.cond(x.sum() > 0, deep_yes, deep_no, (x,)), c.clone()

            def no(c, x):
                return self.a(x).relu(), self.b(x).relu().sin()

            a, b = torch.cond((c != 0).any(), yes, no, (c, x))
            _, z = while_loop(
                lambda i, v: i < 4, lambda i, v: (i + 1, torch.relu(v) * 2), (torch.tensor(0), a)
            )
            return torch.relu(z) + b

    torch.manual_seed(0)
    return Model()


SOME_OPS = {"engine": {torch.ops.aten.relu, torch.ops.aten.sin, torch.ops.aten.addmm,
                       torch.ops.aten.permute, torch.ops.aten.mul}}  # fmt: skip
PREDICATES = [
    (c, x)
    for c in (torch.zeros(3, 4), torch.ones(3, 4))
    for x in (torch.ones(3, 4), -torch.ones(3, 4))
]


@pytest.mark.parametrize("mode", ["auto", "opaque", "whole", "recurse", "whole_if_supported"])
def test_every_mode_equals_eager_for_every_predicate(mode):
    gm = exported(nested_model(), PREDICATES[0])
    before = gm.print_readable(print_output=False)
    result, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map=SOME_OPS, backend_priority=["engine"],
        control_flow={"cond": mode, "while_loop": mode},
    )  # fmt: skip

    for args in PREDICATES:
        wanted = gm(*args)
        assert torch.equal(result(*args), wanted)
        with torch.no_grad():
            assert torch.equal(result(*args), wanted)
        with torch.inference_mode():
            assert torch.equal(result(*args), wanted)
    assert gm.print_readable(print_output=False) == before  # C10, branches included
    assert bool(result.meta["hierpart"].nested) == (
        mode in ("auto", "recurse", "whole_if_supported")
    )


def owner_of_cond(plan) -> str:
    return next(plan.owner[name] for name, op in plan.ops.items() if op.endswith("cond"))


def test_a_listed_op_is_taken_whole_whatever_is_in_its_branches():
    """To list an op is to say that the compiler takes it; nothing of the branches is listed here."""
    gm = exported(nested_model(), PREDICATES[0])
    settings = {
        "backend_priority": ["engine", "other"], "min_block_size": 1,
        "backend_support_map": {"engine": {"torch.ops.higher_order.cond"}, "other": every_op(gm)},
    }  # fmt: skip
    assert owner_of_cond(hierpart.make_plan(gm, **settings)) == "engine"

    modes = {"cond:engine": "whole_if_supported"}
    plan = hierpart.make_plan(gm, **settings, control_flow=modes)

    assert owner_of_cond(plan) == "other"  # the next in priority that takes it
    node = next(name for name, op in plan.ops.items() if op.endswith("cond"))
    refusal, _ = plan.verdicts[node]
    assert refusal.reason is hierpart.Reason.CONTROL_FLOW
    assert refusal.detail == "true_graph_0: torch.ops.aten.sum.dim_IntList"


def assert_whole_only_with_sin(gm):
    """A condition on the branches of cond is met if and only if ``sin`` is supported too."""
    ops = every_op(gm)
    for listed, owner in ((ops, "engine"), (ops - {torch.ops.aten.sin.default}, "eager")):
        plan = hierpart.make_plan(
            gm, backend_priority=["engine"], backend_support_map={"engine": listed},
            min_block_size=1, control_flow={"cond": "whole_if_supported"},
        )  # fmt: skip
        assert owner_of_cond(plan) == owner


def test_a_condition_on_branches_holds_at_every_level():
    """Only ``sin``, two levels down, is not supported."""
    assert_whole_only_with_sin(exported(nested_model(), PREDICATES[0]))


def test_a_condition_on_branches_holds_through_ops_of_other_kinds():
    """The mode is set for cond; what is not supported is in a loop in one of its branches."""

    class Model(nn.Module):
        def forward(self, start, x):
            def yes(start, v):
                step = lambda i, v: (i + 1, v.sin())  # noqa: E731
                return while_loop(lambda i, v: i < 2, step, (start, v))[1]

            return torch.cond(x.sum() > 0, yes, lambda start, v: v.cos(), (start, x))

    assert_whole_only_with_sin(exported(Model(), (torch.tensor(0), torch.ones(3))))


def test_modes_are_found_by_the_names_that_users_know():
    """Training makes ``while_loop_stack_output`` of a loop; branches that write come wrapped."""
    from hierpart.graph.node.control_flow import is_recursed, mode_of, op_of, wrapped_op

    ops, graph = torch.ops.higher_order, torch.fx.Graph()
    cond = graph.call_function(ops.auto_functionalized_v2, (ops.cond,))
    op = graph.call_function(ops.auto_functionalized_v2, (torch.ops.aten.sin.default,))
    plain = graph.call_function(ops.cond, ())

    assert (op_of(cond), op_of(op), op_of(plain)) == ("cond", "auto_functionalized_v2", "cond")
    assert wrapped_op(cond) is ops.cond
    assert wrapped_op(plain) is None
    assert is_recursed({}, plain)
    assert not is_recursed({}, cond)
    assert mode_of({"while_loop": "opaque"}, "while_loop_stack_output") == "opaque"
    assert mode_of({"map:a": "whole", "map": "opaque"}, "map_impl", "a") == "whole"
    assert mode_of({"cond": "whole"}, "while_loop") == "auto"


def test_gradients_flow_through_split_branches():
    gm = exported(nested_model(), PREDICATES[0])
    result, _ = hierarchical_adjacency_partition(
        gm,
        1,
        backend_support_map=SOME_OPS,
        backend_priority=["engine"],
        control_flow={"while_loop": "opaque"},
    )
    for c, x in PREDICATES:
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        result(c, mine).sum().backward()
        gm(c, theirs).sum().backward()
        assert torch.equal(mine.grad, theirs.grad)


def test_a_result_with_split_branches_exports_and_splits_again():
    gm = exported(nested_model(), PREDICATES[0])
    result, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map=SOME_OPS, backend_priority=["engine"]
    )
    program = torch.export.export(result, PREDICATES[0], strict=False)
    again, _ = hierarchical_adjacency_partition(
        result, 1, backend_support_map=SOME_OPS, backend_priority=["engine"]
    )
    for args in PREDICATES:
        assert torch.equal(program.module()(*args), gm(*args))
        assert torch.equal(again(*args), gm(*args))


def test_minimum_size_in_a_branch_counts_that_branch():
    gm = exported(nested_model(), PREDICATES[0])
    plan = hierpart.make_plan(
        gm, backend_priority=["engine"], backend_support_map=SOME_OPS, min_block_size=5
    )

    deep = {(n.branch, b.backend, b.compute_ops) for n in plan.nested for b in n.plan}

    # Six supported ops in one branch of the outer cond stay; the others are too small.
    assert {entry for entry in deep if entry[1] == "engine"} == {("false_graph_0", "engine", 7)}


def test_one_module_used_by_two_ops_is_split_once_and_shared():
    body = GraphModule({}, _relu_graph())
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.get_attr("body")
    call = torch.ops.higher_order.invoke_subgraph
    a = graph.call_function(operator.getitem, (graph.call_function(call, (first, "body", x)), 0))
    middle = graph.call_function(torch.ops.aten.neg.default, (a,))
    second = graph.get_attr("body")
    b = graph.call_function(
        operator.getitem, (graph.call_function(call, (second, "body", middle)), 0)
    )
    graph.output((b,))
    gm = GraphModule({"body": body}, graph)

    result, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"engine": {torch.ops.aten.relu, torch.ops.aten.sin},
                                    "other": {torch.ops.aten.neg}},
        backend_priority=["engine", "other"],
    )  # fmt: skip

    bodies = [m.get_submodule("body") for _, m in result.named_children() if hasattr(m, "body")]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]
    assert accelerated(bodies[0]) == ["_run_on_acc_engine_0"]
    assert gm.get_submodule("body") is body  # C10: the caller's own branch is not replaced
    assert torch.equal(result(torch.ones(3) * -2)[0], gm(torch.ones(3) * -2)[0])
    kept = [a for a in result.meta["hierpart"].attributes if a.kind == "module"]
    assert [a.blocks for a in kept] == [(0,), (2,)]


def _relu_graph() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(
        (
            graph.call_function(
                torch.ops.aten.sin.default,
                (graph.call_function(torch.ops.aten.relu.default, (x,)),),
            ),
        )
    )
    return graph


def test_a_predicate_from_a_size_is_never_a_constant():
    class Model(nn.Module):
        def forward(self, x):
            h = torch.relu(x)
            return (
                torch.cond(x.shape[0] > 4, lambda v: v.sin(), lambda v: v.cos(), (h,)) + x.shape[0]
            )

    batch = torch.export.Dim("batch", min=2, max=16)
    gm = exported(Model(), (torch.randn(3, 2),), dynamic_shapes=({0: batch},))
    for ops in (
        {torch.ops.aten.relu, torch.ops.aten.add},
        {torch.ops.aten.relu, torch.ops.higher_order.cond},
    ):
        result, _ = hierarchical_adjacency_partition(
            gm, 1, backend_support_map={"engine": ops}, backend_priority=["engine"]
        )
        for rows in (3, 4, 5, 9):
            x = torch.randn(rows, 2)
            assert torch.equal(result(x), gm(x))


def test_regions_as_subgraphs_run_in_their_own_mode():
    class Model(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                m = torch.relu(torch.matmul(x, x))
            with torch.no_grad():
                s = torch.relu(torch.sin(x))
            return m, s * x

    gm = torch.export.export(Model(), (torch.randn(3, 3),), strict=False).module(check_guards=False)
    result, _ = hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"engine": {torch.ops.aten.relu, torch.ops.aten.sin}},
        backend_priority=["engine"],
    )  # fmt: skip
    x = torch.randn(3, 3, requires_grad=True)

    mine, theirs = result(x), gm(x)

    assert [t.dtype for t in mine] == [torch.bfloat16, torch.float32]
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert len(accelerated(result)) == 2
    assert torch.equal(*(torch.autograd.grad(out[1].sum(), x)[0] for out in (result(x), gm(x))))


def test_full_compilation_looks_into_branches():
    gm = exported(nested_model(), PREDICATES[0])
    everything = every_op(gm) - {torch.ops.higher_order.cond, torch.ops.higher_order.while_loop}
    settings = {"backend_priority": ["engine"], "require_full_compilation": True}
    hierarchical_adjacency_partition(gm, backend_support_map={"engine": everything}, **settings)

    with pytest.raises(hierpart.FullCompilationError, match=r"aten\.sin\.default"):
        hierarchical_adjacency_partition(
            gm,
            backend_support_map={"engine": everything - {torch.ops.aten.sin.default}},
            **settings,
        )


def test_names_of_modes_are_checked():
    gm = copy.deepcopy(exported(nested_model(), PREDICATES[0]))
    with pytest.raises(hierpart.OptionError, match="did you mean 'cond'"):
        hierarchical_adjacency_partition(gm, control_flow={"cnd": "whole"})
    with pytest.raises(hierpart.OptionError, match="did you mean 'recurse'"):
        hierarchical_adjacency_partition(gm, control_flow={"cond": "recurs"})
    with pytest.raises(hierpart.OptionError, match="inductr"):
        hierarchical_adjacency_partition(gm, control_flow={"cond:inductr": "whole"})


def with_assert_in_branch() -> GraphModule:
    """A cond whose first branch asserts and computes two ops, and a module called by its path."""
    bodies = {}
    for name, ops in (("yes", ("sin", "cos")), ("no", ("relu", "neg"))):
        graph = torch.fx.Graph()
        value = graph.placeholder("x")
        if name == "yes":
            flag = graph.call_function(torch.ops.aten.any.default, (value,))
            graph.call_function(torch.ops.aten._assert_async.msg, (flag, "all zero"))
        for op in ops:
            value = graph.call_function(getattr(torch.ops.aten, op).default, (value,))
        graph.output((value,))
        bodies[name] = GraphModule({}, graph)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    start = graph.call_module("start", (x,))
    pred = graph.call_function(torch.ops.aten.any.default, (start,))
    cond = graph.call_function(
        torch.ops.higher_order.cond, (pred, graph.get_attr("yes"), graph.get_attr("no"), (start,))
    )
    graph.output((graph.call_function(operator.getitem, (cond, 0)),))
    return GraphModule({"start": nn.Tanh(), **bodies}, graph)


def test_an_assert_in_a_branch_does_not_hide_the_ops_beside_it():
    """C5: the op counts what its branches compute; asserts count nothing."""
    plan = hierpart.make_plan(with_assert_in_branch(), backend_priority=[])
    assert sum(b.compute_ops for b in plan) == 2 + 5  # tanh, any; any, sin, cos, relu, neg


def test_names_may_stand_for_what_only_one_level_of_the_graph_holds():
    """A path at the top and an op in a branch are known names, each where the other is not."""
    gm = with_assert_in_branch()
    support = {"engine": {torch.ops.aten.sin, torch.ops.aten.relu, nn.Tanh}}
    for excluded in (["start"], ["torch.ops.aten.sin.default"]):
        result, _ = hierarchical_adjacency_partition(
            gm, 1, excluded, backend_support_map=support, backend_priority=["engine"]
        )
        x = torch.ones(3)
        assert torch.equal(result(x)[0], gm(x)[0])
    with pytest.raises(hierpart.OptionError, match="'stat'"):
        hierarchical_adjacency_partition(
            gm, 1, ["stat"], backend_support_map=support, backend_priority=["engine"]
        )


def test_modules_shared_at_every_level_are_analysed_once():
    """C12: each level calls the one below twice; the work grows with the levels, not as 2^levels."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.sin.default, (x,)),))
    body = GraphModule({}, graph)
    for _ in range(24):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        for _ in range(2):
            call = (graph.get_attr("below"), "below", x)
            pair = graph.call_function(torch.ops.higher_order.invoke_subgraph, call)
            x = graph.call_function(operator.getitem, (pair, 0))
        graph.output((x,))
        body = GraphModule({"below": body}, graph)

    facts = analyse(body)

    assert sum(facts.compute) == 2**24


@pytest.mark.parametrize("view", [False, True], ids=["itself", "a view of it"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_branch_that_returns_its_operand_is_an_alias(view, nested):
    """C3: capture makes no such branch, but eager runs one; a write to the result is a write to it."""
    aten = torch.ops.aten

    def body(same):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        kept = graph.call_function(aten.view.default, (x, [3])) if view else x
        graph.output((kept if same else graph.call_function(aten.neg.default, (x,)),))
        return torch.fx.GraphModule({}, graph)

    def around(modules):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        branches = (graph.get_attr("yes"), graph.get_attr("no"))
        call = graph.call_function(torch.ops.higher_order.cond, (True, *branches, (x,)))
        result = graph.call_function(operator.getitem, (call, 0))
        if modules is bodies and nested:
            graph.output((result,))
            return torch.fx.GraphModule(modules, graph)
        before = graph.call_function(aten.cos.default, (x,))
        written = graph.call_function(aten.add_.Tensor, (result, 1.0))
        graph.output((before, written, graph.call_function(aten.sin.default, (x,))))
        return torch.fx.GraphModule(modules, graph)

    bodies = {"yes": body(same=True), "no": body(same=False)}
    gm = around({"yes": around(bodies), "no": body(same=False)} if nested else bodies)
    wanted = torch.fx.Interpreter(gm).run(torch.arange(3.0))
    ops = {"aten.cos.default", "aten.sin.default"}
    split, _ = hierpart.hierarchical_adjacency_partition(
        gm, 1, backend_support_map={"engine": ops}, backend_priority=["engine"]
    )
    for mine, theirs in zip(split(torch.arange(3.0)), wanted, strict=True):
        assert torch.equal(mine, theirs)
