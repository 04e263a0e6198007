"""One try to compile one block, kept apart from whatever goes on around it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.backends import Backend, backend_named, own_options
from hierpart.errors import BlockFaultError, OptionError
from hierpart.graph import Canonical, restrider, sizes_stay_open
from hierpart.options import Options
from hierpart.runtime import Autocast

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A compiled block as the flat function calls it: one list in, which it may empty."""


@dataclass(frozen=True)
class Code:
    """A compiled block.

    Attributes:
        run: The function that the flat function calls.
        made: What the backend returned.
    """

    run: Compiled
    made: Any

    @property
    def idle(self) -> str | None:
        """Why it does not run on this machine, ``None`` where it does."""
        found: str | None = getattr(self.made, "idle", None)
        return found

    @property
    def detail(self) -> str:
        """What the backend says of it."""
        return str(getattr(self.made, "detail", ""))


def bakes_weights(name: str, options: Options) -> bool:
    """Whether the backend puts weights into its code; equal blocks then share none."""
    return bool(getattr(backend_named(name, options), "bakes_weights", False))


def compile_block(
    name: str,
    prepared: Canonical,
    options: Options,
    weights: Mapping[int, torch.Tensor],
    region: Autocast | None = None,
) -> Code:
    """Compile a block with the backend of that name.

    Args:
        name: The backend.
        prepared: The block; the backend may change it.
        options: The backend objects that the user passed in, and the backends' own options.
        weights: Tensors that never change while the code is used, by position among the inputs. A
            backend that has ``bakes_weights`` gets them in place of the examples.
        region: The autocast region that the block runs in.

    Returns:
        A function whose results have exactly the strides of the block's outputs. A backend that
        keeps aliases answers for that itself: a copy would no longer be the caller's memory.

    Raises:
        LookupError: There is no such backend object.
        NotImplementedError: The block's ops leave their casts to an autocast region, and the
            backend, which has not said ``follows_modes``, would leave them out.
        Exception: Whatever the backend raises.
    """
    backend = _backend(name, options)
    if region is not None and region.enabled and not getattr(backend, "follows_modes", False):
        raise NotImplementedError(
            f"the block is in an autocast region for {region.dtype}, whose casts {name} does not "
            "see; decompose the program first (program.run_decompositions()) to write them out"
        )
    outputs = output_values(prepared.block)
    inputs = list(prepared.inputs)
    if bakes_weights(name, options):
        for i, weight in weights.items():
            inputs[i] = weight
    with sizes_stay_open(prepared.inputs), isolated(region):
        try:
            made = backend.compile(prepared.block, inputs, own_options(name, backend, options))
        except (SystemExit, GeneratorExit) as error:  # a failed block, and no end of the program
            raise BlockFaultError(f"raised {type(error).__name__} when compiling") from error
    if not callable(made):
        raise BlockFaultError(f"returned a {type(made).__name__}, which cannot be called")
    return _code(backend, made, outputs)


def restore_block(name: str, data: bytes, prepared: Canonical, options: Options) -> Code:
    """Return the compiled block that the backend's ``dump`` wrote.

    Raises:
        LookupError: There is no such backend object.
        Exception: Whatever the backend raises.
    """
    backend: Any = _backend(name, options)
    outputs = output_values(prepared.block)
    with isolated():
        made = backend.restore(data, prepared.block)
    return _code(backend, made, outputs)


def _backend(name: str, options: Options) -> Backend:
    backend = backend_named(name, options)
    if backend is None:
        raise LookupError(
            f"no backend is registered as {name!r}, so nothing can compile its blocks"
        )
    return backend


def _code(backend: Backend, made: Any, outputs: Sequence[Any]) -> Code:
    function = _as_boxed(made)
    exact = backend.keeps_aliases or getattr(backend, "exact_strides", False)
    return Code(function if exact else restrided(function, outputs), made)


def restrided(function: Compiled, outputs: Sequence[Any]) -> Compiled:
    """Return a function whose results have exactly the strides of the values in ``outputs``."""
    restriders = [restrider(value) for value in outputs]

    def run(args: list[Any]) -> Sequence[Any]:
        results = function(args)
        return [
            result if restride is None else restride(result)
            for result, restride in zip(results, restriders, strict=True)
        ]

    return run


def _as_boxed(function: Any) -> Compiled:
    function = getattr(function, "boxed", function)
    if getattr(function, "_boxed_call", False):
        boxed: Compiled = function
        return boxed

    def run(args: list[Any]) -> Sequence[Any]:
        given = tuple(args)
        args.clear()
        results: Sequence[Any] = function(*given)
        return results

    return run


def output_values(block: GraphModule) -> list[Any]:
    """Return the example values of what a block hands out."""
    outputs: Any = block.graph.output_node().args[0]
    return [getattr(o, "meta", {}).get("val") for o in outputs]


@contextlib.contextmanager
def isolated(region: Autocast | None = None) -> Iterator[None]:
    """Compile as for inference, in ``region``, apart from any ambient one and ``torch.compile``.

    A nested compile in an ambient tracing context would overwrite what the outer one recorded.
    """
    from torch._guards import tracing

    inside = contextlib.nullcontext() if region is None else region.entered()
    with torch.no_grad(), torch._C._DisableAutocast(), tracing(None), inside:
        yield


def let_through(error: Exception) -> None:
    """Raise what is Dynamo's control flow or the user's mistake and not a failed compile."""
    dynamo = sys.modules.get("torch._dynamo.exc")
    if isinstance(error, OptionError):
        raise error
    if dynamo is None:
        return
    if isinstance(error, dynamo.BackendCompilerFailed):  # how Inductor reports its own failures
        let_through(error.inner_exception)
    elif isinstance(error, (dynamo.RestartAnalysis, dynamo.SkipFrame, dynamo.ShortenTraceback)):
        raise error


def reason_of(error: Exception) -> str:
    """Return what went wrong, in words."""
    cause = cause_of(error)
    own = isinstance(cause, BlockFaultError)
    try:
        text = str(cause)
    except Exception as other:  # the text is the backend's own code
        text = f"(its text cannot be had: {type(other).__name__})"
    return text if own else f"{type(cause).__name__}: {text}"


def cause_of(error: Exception) -> Exception:
    """Return what went wrong inside where ``error`` only wraps it, else ``error``."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, Exception) else error
