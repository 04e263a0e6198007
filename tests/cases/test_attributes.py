"""C7: parameters, buffers and constants are the original objects under names that can be told."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from tests.cases.harness import agree, everywhere, export, split, trace, vector
from tests.models import twin

ATEN = "torch.ops.aten."
LINEAR = {ATEN + op for op in ("permute.default", "addmm.default", "mm.default", "relu.default")}


def storages(module: nn.Module) -> set[int]:
    tensors = (*module.parameters(), *module.buffers())
    return {t.untyped_storage().data_ptr() for t in tensors}


class Tied(nn.Module):
    """The embedding is the head's weight, and one layer is used in two blocks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.mix(self.embed(ids))
        h = torch.cumsum(torch.relu(h), 0)
        return self.head(torch.sin(self.mix(h)))


IDS = (torch.tensor([[1, 2, 3], [4, 5, 6]]),)


def test_weights_are_shared_and_an_update_reaches_every_use():
    model = Tied()
    gm = export(model, IDS)
    for result in everywhere(gm, IDS):
        assert storages(result.parent) == storages(gm)
    result = split(gm, {"tensorrt": LINEAR, "inductor": {ATEN + "embedding.default"}})
    other = copy.deepcopy(model)
    with torch.no_grad():
        for module in (result.parent, other):
            for parameter in module.parameters():
                parameter.mul_(0.5)
    torch.testing.assert_close(result.parent(*IDS), other(*IDS))


def test_each_attribute_keeps_its_qualified_name():
    gm = export(Tied(), IDS)
    result = split(gm, {"tensorrt": LINEAR})
    targets = {n.target for n in gm.graph.find_nodes(op="get_attr") if n.users}
    held = {n.target for b in result.blocks for n in b.module.graph.find_nodes(op="get_attr")}
    assert held == targets
    assert {a.target for a in result.plan.attributes if a.blocks} == targets
    for name in ("mix.weight", "mix.bias"):
        copies = [
            b.module.get_parameter(name)
            for b in result.blocks
            if name in dict(b.module.named_parameters(remove_duplicate=False))
        ]
        assert copies
        assert all(p is gm.get_parameter(name) for p in copies)


def test_every_attribute_is_listed_with_the_blocks_that_use_it():
    result = split(export(Tied(), IDS), {"tensorrt": LINEAR})
    held = {
        (n.target, block.index)
        for block, made in zip(result.plan.blocks, result.blocks, strict=True)
        for n in made.module.graph.find_nodes(op="get_attr")
    }
    listed = {(a.target, i) for a in result.plan.attributes for i in a.blocks}
    assert listed == held


def test_gradients_are_those_of_the_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, x):
            h = torch.cumsum(torch.relu(self.a(x)) * self.frozen, 0)
            return torch.sin(self.b(h)), torch.tanh(self.frozen)

    model, x = Model(), vector(3, 4)
    gm = export(model, (x,))
    sum(o.sum() for o in model(x)).backward()
    wanted = {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
    for result in everywhere(gm, (x,)):
        gm.zero_grad()
        outputs = result.parent(x)
        assert [o.requires_grad for o in outputs] == [True, False]
        sum(o.sum() for o in outputs).backward()
        got = {k: p.grad for k, p in gm.named_parameters() if p.grad is not None}
        torch.testing.assert_close(got, wanted)
        mine = {id(p) for p in result.parent.parameters()}
        assert {id(gm.get_parameter(k)) for k in wanted} <= mine


TAKEN = [
    "submod_0", "_run_on_gpu_0", "_run_on_gpu_1", "_run_on_acc_tensorrt_0",
    "_run_on_acc_tensorrt_1", "_run_on_acc_inductor_0", "getitem", "output", "placeholder",
]  # fmt: skip


@pytest.mark.parametrize("capture", ["export", "trace"])
def test_names_of_blocks_do_not_collide(capture):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for i, name in enumerate(TAKEN):
                self.register_buffer(name, torch.full((2,), float(i + 1)))

        def forward(self, _run_on_gpu_2, _run_on_acc_tensorrt_2):
            h = torch.cumsum(torch.relu(_run_on_gpu_2 + self.submod_0), 0)
            h = h + _run_on_acc_tensorrt_2
            for name in TAKEN:
                h = torch.sin(h) + getattr(self, name)
            return h, *(getattr(self, name) for name in TAKEN)

    args = (vector(3, 2), vector(3, 2, seed=1))
    gm = export(Model(), args) if capture == "export" else trace(Model(), args)
    everywhere(gm, args)


def test_called_modules_with_the_names_of_blocks():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self._run_on_gpu_0 = nn.Linear(3, 3)
            self._run_on_acc_tensorrt_1 = nn.ReLU()

        def forward(self, x):
            return torch.sin(self._run_on_acc_tensorrt_1(self._run_on_gpu_0(torch.cos(x))))

    gm = trace(Model(), (vector(2, 3),))
    everywhere(gm, (vector(2, 3),))


def test_results_that_are_attributes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((2,), 3.0))
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            return torch.cumsum(torch.sin(x) * self.scale, 0), self.scale, self.seen

    for gm in (export(Model(), (vector(2),)), trace(Model(), (vector(2),))):
        for result in everywhere(gm, (vector(2),)):
            got = result.parent(vector(2))
            assert got[1] is result.source.scale or got[1].data_ptr() == gm.scale.data_ptr()


def test_a_mutated_buffer_that_is_a_result():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen.add_(torch.sin(x))
            return self.seen, torch.cumsum(self.seen, 0)

    for gm in (export(Model(), (vector(2),)), trace(Model(), (vector(2),))):
        everywhere(gm, (vector(2),), more=[(vector(2, seed=1),)])


def test_weight_only_work_goes_to_its_consumer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(vector(4, 4))

        def forward(self, x):
            folded = torch.relu(self.weight) * 2.0
            return torch.sin(torch.cumsum(x, 0) @ folded)

    args = (vector(3, 4),)
    gm = export(Model(), args)
    for support in (
        {"tensorrt": {ATEN + "relu.default"}, "inductor": {ATEN + "mm.default"}},
        {"tensorrt": {ATEN + "relu.default", ATEN + "mul.Tensor"}, "inductor": set()},
    ):
        result = split(gm, support)
        agree(result, args)
        for block in result.blocks:
            if block.backend != "eager":
                assert block.module.graph.find_nodes(op="placeholder")


def test_constants_made_in_forward():
    class Model(nn.Module):
        def forward(self, x):
            table = torch.tensor([1.0, 2.0, 3.0])
            return torch.cumsum(torch.sin(x) * table, 0), torch.relu(x + torch.arange(3.0))

    args = (vector(3),)
    everywhere(export(Model(), args), args)


def test_nothing_supported_and_no_attribute_lost():
    gm = export(Tied(), IDS)
    result = split(gm, {"tensorrt": set(), "inductor": set()})
    assert set(result.backends) == {"eager"}
    agree(result, IDS)


def round_trip(module: nn.Module, how: str) -> nn.Module:
    if how == "deepcopy":
        return copy.deepcopy(module)
    return pickle.load(io.BytesIO(pickle.dumps(module)))


class Scaled(nn.Module):
    """A parameter pair and a buffer, for copies and pickles."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x):
        h = torch.relu(self.linear(x))
        self.scale.add_(1.0)
        return torch.sin(torch.cumsum(h, 0)) * self.scale


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("capture", ["export", "trace"])
def test_copies_run_and_keep_their_blocks(how, capture):
    args = (vector(2, 4),)
    # twin: the module that export returns cannot be pickled itself, for one of its hooks
    gm = twin(export(Scaled(), args)) if capture == "export" else trace(Scaled(), args)
    sin = {ATEN + "sin.default", "torch.sin"} if capture == "export" else {"torch.sin"}
    support = {"tensorrt": LINEAR if capture == "export" else {"torch.relu"}, "inductor": sin}
    result = split(gm, support)
    once = round_trip(result.parent, how)
    again = round_trip(once, how)
    blocks = [n.target for n in result.parent.graph.find_nodes(op="call_module")]
    for module in (once, again):  # unpickling traces a GraphModule anew: other names, same calls
        assert [n.target for n in module.graph.find_nodes(op="call_module")] == blocks
    assert not storages(once) & storages(result.parent)
    for _ in range(2):
        want = result.parent(*args)
        assert torch.equal(once(*args), want)
        assert torch.equal(again(*args), want)
    if how == "deepcopy":  # unpickling a GraphModule keeps no meta
        assert again.meta["hierpart"] == result.plan
