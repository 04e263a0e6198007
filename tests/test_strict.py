"""``strict=True``: the first block that fails raises, with all that is needed to run it again."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
import torch
from torch import nn

from hierpart.build.compiling import compile_model
from hierpart.dynamo import Backend
from hierpart.errors import BackendCompileError, BlockFaultError
from hierpart.options import Options
from hierpart.report.block_program import program_of
from tests.doubles import Double, Raising, Wrapping, options_for


class Net(nn.Module):
    """Two layers around a cumsum, so that there are two blocks."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)).cumsum(0)) * float("inf")


def failure(*backends, model=None, args=None, **fields):
    model, args = model or Net(), args or (torch.randn(5, 4),)
    with pytest.raises(BackendCompileError) as caught:
        compile_model(model, args, options=options_for(*backends, **fields))
    return caught.value


def run(source):
    """Run a program as ``python file.py`` does, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, torch.random.fork_rng():
        exec(compile(source, "block.py", "exec"), {"__name__": "__main__"})
    return out.getvalue()


def test_the_error_carries_block_backend_source_inputs_and_cause():
    cause = RuntimeError("no such kernel")
    error = failure(Raising("first", cause, ["cumsum"]), Double("second"), strict=True)
    assert error.__cause__ is cause
    assert (error.block.index, error.block.backend, error.backend) == (0, "first", "first")
    assert error.inputs == (
        "float32[5, 4] strides [4, 1] on cpu", "float32[3, 4] strides [4, 1] on cpu",
        "float32[3] strides [1] on cpu",
    )  # fmt: skip
    assert re.search(r"block 0 .*first: RuntimeError: no such kernel.*strict=False", str(error))
    assert "tensor([[" in run(error.source)


def test_a_block_that_disagrees_or_breaks_a_cap_raises_too():
    def wrong(function, inputs):
        return lambda *args: [-r for r in function(*args)]

    error = failure(Wrapping("first", wrong), Double("second"), strict=True, check=True)
    assert isinstance(error.__cause__, BlockFaultError)
    assert "does not agree with eager: output 0 differs" in str(error)

    def hang(function, inputs):
        import time

        time.sleep(600)

    error = failure(Wrapping("first", hang), strict=True, compile_timeout=0.5)
    assert "did not end within compile_timeout=0.5 s" in str(error.__cause__)


def test_in_torch_compile_the_error_is_the_inner_one():
    torch._dynamo.reset()
    double = Raising("first", RuntimeError("no such kernel"))
    backend = Backend(
        backend_priority=["first"], backend_support_map={"first": double}, min_block_size=1,
        strict=True,
    )  # fmt: skip
    with pytest.raises(Exception, match="no such kernel") as caught:
        torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.randn(3))
    inner = caught.value
    while not isinstance(inner, BackendCompileError):
        inner = inner.inner_exception if hasattr(inner, "inner_exception") else inner.__cause__
    assert "class Block" in inner.source
    torch._dynamo.reset()


def test_one_option_under_two_names():
    assert (Options().strict, Options().fallback) == (False, True)
    for options in (Options(strict=True), Options(fallback=False)):
        assert (options.strict, options.fallback) == (True, False)
    assert Options(strict=True) == Options(fallback=False)


class Choosing(nn.Module):
    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.to(torch.float64).cos().float(), (x,)
        )


class Sizes(nn.Module):
    def forward(self, x, index):
        return (
            x[index].reshape(index.shape[0] * 2, 2) + torch.arange(x.shape[0] * 2).unsqueeze(1) // 4
        )


class Odd(nn.Module):
    def forward(self, x):
        y = x.to("cpu", torch.bfloat16).expand(2, 3, 4).transpose(0, 1)
        return torch.ops.aten.clamp(y, min=-float("inf")), x.isnan().any(), x.new_zeros(0, 3)


CASES = {
    "branches": (Choosing(), (torch.randn(3),), None),
    "open sizes and indices": (
        Sizes(), (torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 0, 0])),
        ({0: torch.export.Dim("n", min=2)},) * 2,
    ),
    "layouts and dtypes": (Odd(), (torch.randn(3, 4),), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sources_run_by_themselves(name):
    model, args, shapes = CASES[name]
    program = torch.export.export(model, args, dynamic_shapes=shapes, strict=False)
    source, inputs = program_of(program.graph_module, "A block")
    names = {"__name__": "block"}
    exec(compile(source, "block", "exec"), names)
    made = names["inputs"]()
    assert len(made) == len(inputs)
    expected = program.module()(*made) if name == "branches" else None
    results = names["Block"]()(*made)
    if expected is not None:
        torch.testing.assert_close(results[0], expected)
