"""Tensor literals of branches become operands (C7: constants shared by identity, C10 hands off)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import hierpart
from hierpart.graph.literals import lift_literals, lift_literals_of
from tests.doubles import Wrapping

INPUTS = [torch.ones(3, 2), -torch.ones(3, 2), torch.full((3, 2), 0.1)]


class Nested(nn.Module):
    def forward(self, x):
        def deep_yes(x):
            return x * torch.tensor([3.0, 1.0])

        def yes(x):
            return torch.cond(x.sum() > 1, deep_yes, lambda x: x.sin(), (x,)) + torch.tensor(
                [1.0, 2.0]
            )

        return torch.cond(x.sum() > 0, yes, lambda x: x * 3 - torch.tensor([5.0, 6.0]), (x,))


class Loop(nn.Module):
    def forward(self, x):
        step = lambda i, v: (i + 1, v * torch.tensor([2.0, 0.5]))  # noqa: E731
        return while_loop(lambda i, v: i < torch.tensor(3), step, (torch.tensor(0), x))[1]


def exported(model):
    return torch.export.export(model, (INPUTS[0],), strict=False)


@pytest.mark.parametrize("model", [Nested(), Loop()], ids=["nested cond", "loop"])
def test_lifted_program_equals_the_model_and_decomposes(model):
    program = exported(model)
    before = str(program)
    with pytest.raises(RuntimeError):  # when torch lifts literals itself, this module can go
        program.run_decompositions({})

    lifted = lift_literals(program)

    assert str(program) == before
    assert lift_literals(lifted) is lifted
    for candidate in (lifted, lifted.run_decompositions({})):
        for x in INPUTS:
            assert torch.equal(candidate.module()(x), model(x))


def test_a_program_without_literals_is_returned_as_it_is():
    program = exported(nn.ReLU())
    assert lift_literals(program) is program


def test_a_model_with_literals_in_branches_compiles():
    compiled = hierpart.compile(Nested(), (INPUTS[0],), backend_priority=[])
    for x in INPUTS:
        assert torch.equal(compiled(x), Nested()(x))


def test_literals_of_a_graph_module_become_attributes_of_its_own():
    gm = exported(Nested()).module(check_guards=False)
    before = gm.print_readable(print_output=False)

    lifted = lift_literals_of(gm)

    assert gm.print_readable(print_output=False) == before  # C10
    assert lift_literals_of(lifted) is lifted
    names = [n.target for n in lifted.graph.nodes if n.op == "get_attr" and "literal" in n.target]
    assert names == ["lifted_literal_0", "lifted_literal_1", "lifted_literal_2"]
    for x in INPUTS:
        assert torch.equal(lifted(x), Nested()(x))
    held = [t for m in gm.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]
    held += [t for m in gm.modules() for t in m.buffers(recurse=False)]
    assert all(any(getattr(lifted, name) is t for t in held) for name in names)  # C7: no copies


def test_literals_do_not_keep_an_op_from_being_taken_whole():
    seen = []

    def looking(run, inputs):
        seen.append(len(inputs))
        return run

    torch._dynamo.reset()
    backend = hierpart.Backend(
        backend_priority=["inductor"], min_block_size=1,
        backend_support_map={"inductor": Wrapping("inductor", looking)},
    )  # fmt: skip
    function = torch.compile(Nested(), backend=backend)
    for x in INPUTS:
        torch.testing.assert_close(function(x), Nested()(x))
    assert seen == [1 + 3]  # x and the literals of all levels
    torch._dynamo.reset()
