"""C11: what tracing recorded on a node is still there after the split, and the result exports."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

from tests.cases.harness import CALLS, Split, everywhere, export, near, split, trace, vector

ATEN = "torch.ops.aten."
KEPT = ("val", "tensor_meta", "stack_trace", "nn_module_stack", "from_node", "custom")


class Model(nn.Module):
    """A linear layer, an op that no backend takes, several outputs and a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        h = torch.relu(self.linear(x))
        a, b = torch.split(h, 3, 1)
        c = torch.cumsum(a, 0)
        self.seen.add_(1.0)
        return {"a": torch.tanh(c).reshape(x.shape[0] * 3), "b": torch.sin(b) + self.seen}


ARGS = (vector(3, 4),)
DYNAMIC = {"x": {0: torch.export.Dim("rows", min=2, max=16)}}
SUPPORT = {
    "tensorrt": {ATEN + op for op in ("permute.default", "addmm.default", "relu.default")},
    "inductor": {ATEN + op for op in ("sin.default", "add.Tensor", "tanh.default")},
}


def described(value):
    if isinstance(value, torch.Tensor):
        return tuple(map(str, value.shape)), tuple(map(str, value.stride())), value.dtype
    return type(value)


def check_metadata(result: Split) -> None:
    was = {n.name: n for n in result.source.graph.nodes}
    for block in result.blocks:
        for node in block.module.graph.nodes:
            if node.op != "output" and node.name in was:
                for key in KEPT:
                    if key in was[node.name].meta:
                        assert key in node.meta, f"{node.name} in {block.name} has lost {key}"
                value = was[node.name].meta.get("val")
                assert described(node.meta.get("val")) == described(value), node.name
    for node in result.parent.graph.nodes:
        assert node.op == "output" or "val" in node.meta, f"{node.name} of the parent has no val"
    for block in result.blocks:
        (call,) = [n for n in result.parent.graph.nodes if n.target == block.name]
        returned = block.module.graph.output_node().args[0]
        for have, want in zip(call.meta["val"], returned, strict=True):
            assert described(have) == described(want.meta.get("val"))
        for item in call.users:
            assert described(item.meta["val"]) == described(call.meta["val"][item.args[1]])


def test_metadata_survives_everywhere():
    gm = export(Model(), ARGS, dynamic=DYNAMIC)
    for node in gm.graph.nodes:
        node.meta["custom"] = {"note": node.name}
    for result in everywhere(gm, ARGS, more=[(vector(5, 4),)]):
        check_metadata(result)
        for block in result.blocks:
            for node in block.calls():
                if node.name in {n.name for n in gm.graph.nodes}:
                    assert node.meta["custom"] == {"note": node.name}


def test_metadata_of_one_graph_is_not_shared_with_the_other():
    gm = export(Model(), ARGS)
    result = split(gm, SUPPORT)
    for block in result.blocks:
        for node in block.module.graph.nodes:
            node.meta["written later"] = True
    assert not [n for n in gm.graph.nodes if "written later" in n.meta]


def test_graphs_without_any_metadata():
    gm = trace(Model())
    for node in gm.graph.nodes:
        node.meta.clear()
    everywhere(gm, ARGS)


def test_names_and_targets_of_nodes_stay():
    gm = export(Model(), ARGS)
    was = {n.name: n.target for n in gm.graph.nodes if n.op in CALLS}
    for result in everywhere(gm, ARGS):
        for block in result.blocks:
            for node in block.calls():
                assert was.get(node.name, node.target) == node.target


@pytest.mark.parametrize("mutates", [False, True])
def test_the_result_exports_saves_and_loads(mutates):
    class Quiet(Model):
        def forward(self, x):
            h = torch.relu(self.linear(x))
            a, b = torch.split(h, 3, 1)
            c = torch.cumsum(a, 0)
            return {"a": torch.tanh(c).reshape(x.shape[0] * 3), "b": torch.sin(b) + self.seen}

    model = Model() if mutates else Quiet()
    parent = split(export(model, ARGS, dynamic=DYNAMIC), SUPPORT).parent
    program = torch.export.export(copy.deepcopy(parent), ARGS, dynamic_shapes=DYNAMIC)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for module in (program.module(), torch.export.load(file).module()):
        eager = copy.deepcopy(model)
        for args in (ARGS, (vector(5, 4),), ARGS):
            near(module(*args), eager(*args))


def test_the_result_compiles_as_part_of_a_model():
    class Around(nn.Module):
        def __init__(self, inner: GraphModule):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x * 2.0)["b"] + 1.0

    model = Model()
    parent = split(export(model, ARGS), SUPPORT).parent
    twin = copy.deepcopy(parent)
    torch._dynamo.reset()
    compiled = torch.compile(Around(parent), backend="eager", fullgraph=True)
    for _ in range(2):
        near(compiled(*ARGS), Around(twin)(*ARGS))
