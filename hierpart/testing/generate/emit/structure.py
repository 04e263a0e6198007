"""Emitters of structure: attributes, submodules, regions of a mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hierpart.testing.generate.graph_builder import undisturbed
from hierpart.testing.generate.maker import Maker, emitter
from hierpart.testing.generate.tensors import TensorSpec

aten = torch.ops.aten

# ---------------------------------------------------------------------- attributes


def buffer_of(shape: tuple[int, ...], seed: int) -> Callable[[nn.Module], Tensor]:
    """Return what makes a buffer of this shape."""
    return lambda holder: TensorSpec(shape, seed=seed).make()


def _parameter(shape: tuple[int, ...], seed: int) -> Callable[[nn.Module], Tensor]:
    return lambda holder: nn.Parameter(TensorSpec(shape, seed=seed).make())


@emitter("buffers")
def buffer(m: Maker) -> None:
    """``self.state``: the first use of a buffer, or another one of the same."""
    number = m.number(0, 2)
    shape = ((2, 3), (3,), (3,))[number]
    m.builder.attribute(("state", "stats.mean", "stats.var")[number], buffer_of(shape, number + 40))


@emitter("buffers")
def overlapping_buffer(m: Maker) -> None:
    """``self.window``, which shares storage with ``self.state``."""
    m.builder.attribute("state", buffer_of((2, 3), 40))
    m.builder.attribute("window", lambda holder: holder.get_buffer("state")[1])


@emitter("parameters")
def parameter(m: Maker) -> None:
    """``self.layer.weight``, also under a second name."""
    number = m.number(0, 2)
    if number == 2:
        m.builder.attribute("layer.weight", _parameter((3, 3), 50))
        m.builder.attribute("tied.weight", lambda holder: holder.get_parameter("layer.weight"))
    else:
        m.builder.attribute(
            ("layer.weight", "layer.bias")[number], _parameter(((3, 3), (3,))[number], number + 50)
        )


@emitter("constants")
def constant(m: Maker) -> None:
    """``self._tensor_constant0``, and a name that a splitter would like for itself."""
    name = m.pick(("_tensor_constant0", "_run_on_gpu_0", "submod_0"))
    m.builder.attribute(name, buffer_of((3,), 60))


@emitter("constants")
def weight_only(m: Maker) -> None:
    """Work on attributes alone: ``relu(self.layer.bias)``."""
    weight = m.builder.attribute("layer.bias", _parameter((3,), 51))
    m.call(aten.relu.default, weight)


# ---------------------------------------------------------------------- submodules


def _modules() -> dict[str, Callable[[], nn.Module]]:
    return {
        "linear": lambda: _seeded(nn.Linear(3, 3)),
        "activation": nn.ReLU,
        "drop": nn.Dropout,
        "norm": lambda: nn.BatchNorm1d(3),
        "block.inplace": lambda: nn.ReLU(inplace=True),
    }


def _seeded(linear: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        for number, weight in enumerate(linear.parameters()):
            weight.copy_(TensorSpec(tuple(weight.shape), seed=70 + number).make())
    return linear


@emitter("modules")
def submodule(m: Maker) -> None:
    """``self.linear(x)``, as symbolic tracing leaves the leaves of a model."""
    name = m.pick(("linear", "activation", "drop", "norm", "block.inplace"))
    if name == "block.inplace":
        x = m.writable(lambda v: v.is_floating_point())
    else:
        x = m.tensor(lambda v: v.dtype == torch.float32 and v.dim() == 2)
    if name not in ("block.inplace", "drop") or _may(m, name):
        m.builder.module(name, _modules()[name], x)


def _may(m: Maker, name: str) -> bool:
    return {"block.inplace": "mutation", "drop": "random"}[name] in m.features


# ---------------------------------------------------------------------- regions of a mode


@emitter("regions")
def without_grad(m: Maker) -> None:
    """``with torch.no_grad(): ...`` as Dynamo writes it."""
    inside, before = m.deeper(), torch.is_grad_enabled()
    with undisturbed():
        m.call(torch._C._set_grad_enabled, False)
        inside.steps(4)
        m.call(torch._C._set_grad_enabled, before)


@emitter("regions")
def autocast(m: Maker) -> None:
    """``with torch.autocast("cpu"): ...`` as Dynamo writes it."""
    # The worlds enter and leave a mode in turn, not nested, so it is put back from outside.
    inside = m.deeper()
    modes = torch.amp.autocast_mode
    with undisturbed():
        mode = m.call(modes._enter_autocast, "cpu", torch.bfloat16, True, None)
        inside.steps(4)
        m.call(modes._exit_autocast, mode)
