"""A block with its engine: runs the engine where it can, else the block's own graph.

The graph runs where there is no GPU, for sizes outside the engine's range, and when a weight is no
longer what is inside an engine that is not refittable.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.backends.tensorrt import library
from hierpart.backends.tensorrt.engine import Engine, weight_digest
from hierpart.backends.tensorrt.settings import RTX_TARGETS

_log = logging.getLogger("hierpart")


class EngineBlock:
    """A compiled block: takes one list of the block's placeholders, which it empties.

    Args:
        engine: The engine.
        block: The block as a graph; runs where the engine does not.
        weights: The tensors inside the engine, by position among the placeholders.
        kept: Whether the engine came from the engine cache.

    Attributes:
        engine: The engine as it was built: what is saved.
        idle: Why the engine does not run on this machine, ``None`` where it does.
    """

    _boxed_call = True

    def __init__(
        self,
        engine: Engine,
        block: GraphModule,
        weights: Mapping[int, torch.Tensor],
        kept: bool = False,
    ) -> None:
        self.engine, self._block, self._kept = engine, block, kept
        self._live = engine  # the same with other weights, once it was refitted
        self._baked = Baked(engine.weights, engine.digests, weights)
        self._module: Any = None
        self._warned: dict[str, None] = {}
        self.idle = idle(engine) or _off_gpu(block)

    @property
    def detail(self) -> str:
        """What the report says of the block."""
        text = self.engine.describe() + (", from the engine cache" if self._kept else "")
        if self.idle is not None:
            text += f"; the block runs eagerly here: {self.idle}"
        return "\n".join([text, *self.engine.log])

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run once; ``args`` is emptied."""
        why = self.idle or self._misfit(args)
        if why is not None:
            return self._eager(args, why)
        given = [args[i].contiguous() for i in self.engine.places]
        passed = {i: args[i] for r in self.engine.results if r < 0 for i in (-1 - r,)}
        args.clear()
        if self._module is None:
            self._module = runnable(self._live)
        made = self._module(*given)
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        return [outputs[r] if r >= 0 else passed[-1 - r] for r in self.engine.results]

    def _misfit(self, args: Sequence[Any]) -> str | None:
        """Return why the engine is not right for these arguments, if so."""
        for i, sizes in zip(self.engine.places, self.engine.ranges, strict=True):
            if not sizes.holds(args[i].shape):
                return (
                    f"an input of shape {list(args[i].shape)} is outside the engine's range "
                    f"{list(sizes.least)} to {list(sizes.greatest)}"
                )
        if self._live.stripped or not self._baked.holds(args):
            return self._refit(args)
        return None

    def _refit(self, args: Sequence[Any]) -> str | None:
        """Put the weights among the arguments into the engine; return why not, if so."""
        if not self.engine.refittable:
            return "a weight was changed after the engine was built; compile the model again"
        from hierpart.backends.tensorrt.engine import EngineError
        from hierpart.backends.tensorrt.network import NetworkError
        from hierpart.backends.tensorrt.refit import refitted

        weights = {i: args[i] for i in self.engine.weights}
        try:
            engine = refitted(self.engine, self._block, weights)
        except (EngineError, NetworkError) as error:
            self.idle = f"its engine could not be refitted: {error}"
            _log.warning("a TensorRT block runs eagerly: %s", self.idle)
            return self.idle
        self._live, self._module = engine, None
        self._baked = Baked(engine.weights, engine.digests, weights)
        return None

    def _eager(self, args: list[Any], why: str) -> Sequence[Any]:
        if self.idle is None and why not in self._warned:
            self._warned[why] = None
            _log.warning("a TensorRT block runs eagerly: %s", why)
        given = tuple(args)
        args.clear()
        results: Sequence[Any] = self._block(*given)
        return results


class Baked:
    """Whether weights are still what an engine has inside.

    A tensor that is the same object with the same memory and version holds the same values; where
    one is not, its values are compared once.

    Args:
        places: Positions of the weights among the arguments.
        digests: Digest of the values of each inside the engine.
        weights: Tensors that are known to hold these values, by position.
    """

    def __init__(
        self,
        places: Sequence[int],
        digests: Sequence[str],
        weights: Mapping[int, torch.Tensor],
    ) -> None:
        self._places, self._digests, self._good = tuple(places), tuple(digests), True
        self._seen = [_mark(weights[i]) if i in weights else None for i in places]

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether the weights among the arguments are those inside the engine."""
        now = [args[i] for i in self._places]
        if not all(map(_is_marked, now, self._seen)):
            self._good = [weight_digest(w) for w in now] == list(self._digests)
            self._seen = [_mark(w) for w in now]
        return self._good


_Mark = tuple["weakref.ref[torch.Tensor]", int, int]


def _mark(tensor: torch.Tensor) -> _Mark:
    return weakref.ref(tensor), tensor.data_ptr(), _version(tensor)


def _is_marked(tensor: torch.Tensor, mark: _Mark | None) -> bool:
    return (
        mark is not None
        and mark[0]() is tensor
        and mark[1] == tensor.data_ptr()
        and mark[2] == _version(tensor)
    )


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def idle(engine: Engine) -> str | None:
    """Return why an engine cannot run on this machine, ``None`` where it can."""
    capability = library.gpu()
    if capability is None:
        return "there is no GPU"
    name = f"sm_{capability[0]}{capability[1]}"
    if engine.target and name not in engine.target:
        return f"the GPU here is {name}"
    if library.is_rtx() and name not in RTX_TARGETS:
        return f"TensorRT-RTX does not run on {name}; it runs on {', '.join(RTX_TARGETS)}"
    why = library.problem()
    if why is not None:
        return why
    here = library.versions()
    runtime = [k for k in engine.versions if k not in ("torch", *library.PACKAGES)]
    for package in runtime:
        if here.get(package) != engine.versions[package]:
            return (
                f"the engine was built with {package} {engine.versions[package]} and here is "
                f"{here.get(package) or 'none'}"
            )
    return None


def _off_gpu(block: GraphModule) -> str | None:
    """Return why a block's tensors are not where its engine could read them, if so."""
    values = [n.meta.get("val") for n in block.graph.find_nodes(op="placeholder")]
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type != "cuda":
            return f'the model is on the {value.device.type}; hierpart.load(path, device="cuda")'
    return None


def runnable(engine: Engine) -> Any:
    """Return torch_tensorrt's own module that runs the engine on the current GPU."""
    library.library()
    from torch_tensorrt.dynamo.runtime import TorchTensorRTModule

    from hierpart.backends.tensorrt.network import theirs_of
    from hierpart.backends.tensorrt.settings import Settings

    return TorchTensorRTModule(
        serialized_engine=engine.plan, input_binding_names=list(engine.inputs),
        output_binding_names=list(engine.outputs), name="hierpart",
        settings=theirs_of(Settings()),
    )  # fmt: skip
