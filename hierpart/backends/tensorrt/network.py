"""A TensorRT network made of a lowered block by torch_tensorrt's converters.

Used twice: to try a node or a block, which takes milliseconds, and to build an engine of it. What
the network reads and writes is checked against the block, because TensorRT accepts some networks
whose inputs or outputs are not what the graph says.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.backends.tensorrt.library import library
from hierpart.backends.tensorrt.ranges import Range, range_of
from hierpart.backends.tensorrt.settings import Settings
from hierpart.graph import is_symbolic, value_of

CONTEXT_LOGGER = "torch_tensorrt [TensorRT Conversion Context]"
DTYPES = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool}
)
"""What networks read and write here: TensorRT's int8 and uint8 do no arithmetic."""


class NetworkError(RuntimeError):
    """The network cannot be made, or would not do what the block does; the message says why."""


@dataclass(frozen=True)
class Network:
    """A network ready to be built.

    Attributes:
        interpreter: What made it; holds the network and its builder.
        inputs: Names of its inputs, in the order of the block's placeholders.
        outputs: Names of its outputs, in the order of the block's outputs.
        ranges: Range of each input.
        layers: How many layers it has.
    """

    interpreter: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ranges: tuple[Range, ...]
    layers: int


def make_network(block: GraphModule, settings: Settings) -> Network:
    """Return the network of a lowered block.

    Args:
        block: Placeholders of tensors, ``get_attr`` of weights, ops that the registry takes; the
            output is a flat tuple of distinct nodes. It is not changed.
        settings: How it is to be built.

    Raises:
        NetworkError: A converter refuses, or inputs or outputs come out otherwise than in the
            block.
    """
    inputs = [value_of(n) for n in block.graph.find_nodes(op="placeholder")]
    made: Any = block.graph.output_node().args[0]
    outputs = [value_of(n) for n in made]
    ranges = tuple(range_of(value, settings.max_size) for value in inputs)
    specs = [_spec(v, r, settings) for v, r in zip(inputs, ranges, strict=True)]
    dtypes = [_dtype(value, settings) for value in outputs]
    with own_settings(settings) as theirs, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of, it raises afterwards
        try:
            interpreter = _interpreter_class()(block, specs, dtypes, theirs)
            interpreter._construct_trt_network_def()
        except NetworkError:
            raise
        except Exception as error:  # converters raise whatever they like
            raise NetworkError(_cause(error)) from error
    network = interpreter.ctx.net
    names = tuple(interpreter._input_names), tuple(interpreter._output_names)
    found = Network(interpreter, *names, ranges, network.num_layers)
    _check(found, network, inputs, outputs, settings)
    return found


def _spec(value: torch.Tensor, sizes: Range, settings: Settings) -> Any:
    dtype = _dtype(value, settings)
    if sizes.is_fixed:
        return library().Input(shape=sizes.least, dtype=dtype)
    return library().Input(
        min_shape=sizes.least, opt_shape=sizes.likeliest, max_shape=sizes.greatest, dtype=dtype
    )


def _dtype(value: torch.Tensor, settings: Settings) -> torch.dtype:
    if value.dtype is torch.float64 and settings.truncate_double:
        return torch.float32
    if value.dtype not in DTYPES:
        raise NetworkError(f"TensorRT reads and writes no {value.dtype}")
    return value.dtype


@functools.cache
def _interpreter_class() -> Any:
    from torch_tensorrt.dynamo.conversion._TRTInterpreter import TRTInterpreter

    class Interpreter(TRTInterpreter):  # type: ignore[misc]
        """Gives every output of the block an output of its own."""

        def output(self, target: Any, args: Any, kwargs: Any) -> Any:
            """Mark the outputs; an input that is returned, or a value returned twice, is copied.

            TensorRT would rename the input and drop the second output.
            """
            seen: list[Any] = []
            for value in args[0]:
                again = any(value is other for other in seen)
                if hasattr(value, "is_network_input") and (value.is_network_input or again):
                    value = self.ctx.net.add_identity(value).get_output(0)
                seen.append(value)
            return super().output(target, (tuple(seen),), kwargs)

    return Interpreter


@contextlib.contextmanager
def own_settings(settings: Settings) -> Iterator[Any]:
    """Give the converter registry these settings for as long as it is asked.

    The registry is one for the process, and others use it too.
    """
    theirs = theirs_of(settings)  # imports the library, also where there is no GPU
    from torch_tensorrt.dynamo import conversion

    registry = conversion.DYNAMO_CONVERTERS
    before, disallowed = registry.compilation_settings, registry.disallowed_targets
    registry.set_compilation_settings(theirs)
    try:
        yield theirs
    finally:
        registry.compilation_settings = before
        registry.set_disallowed_targets(disallowed)


def theirs_of(settings: Settings) -> Any:
    """Return the settings as torch_tensorrt's own."""
    device = library().Device
    from torch_tensorrt.dynamo._settings import CompilationSettings

    index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    extra = {"timing_cache_path": settings.timing_cache} if settings.timing_cache else {}
    return CompilationSettings(
        device=device(gpu_id=index), truncate_double=settings.truncate_double,
        workspace_size=settings.workspace_size, optimization_level=settings.optimization_level,
        disable_tf32=settings.disable_tf32, sparse_weights=settings.sparse_weights,
        max_aux_streams=settings.max_aux_streams,
        tiling_optimization_level=settings.tiling_optimization_level,
        hardware_compatible=settings.hardware_compatible,
        version_compatible=settings.version_compatible,
        immutable_weights=not settings.may_refit, strip_engine_weights=settings.strip_weights,
        refit_identical_engine_weights=False, **extra,
    )  # fmt: skip


def _check(
    found: Network, network: Any, inputs: Sequence[Any], outputs: Sequence[Any], settings: Settings
) -> None:
    """Compare what the network reads and writes with what the block does."""
    if getattr(found.interpreter.ctx, "aliased_outputs", ()):
        raise NetworkError("its network would write to its inputs")
    if found.interpreter.ctx.requires_output_allocator:
        raise NetworkError("the shape of a result depends on data")
    read = [network.get_input(i) for i in range(network.num_inputs)]
    written = [network.get_output(i) for i in range(network.num_outputs)]
    _check_tensors("input", found.inputs, read, inputs, settings)
    _check_tensors("output", found.outputs, written, outputs, settings)


def _check_tensors(
    what: str, names: Sequence[str], tensors: Sequence[Any], values: Sequence[Any], s: Settings
) -> None:
    if [t.name for t in tensors] != list(names) or len(names) != len(values):
        raise NetworkError(
            f"the block has {len(values)} {what}s and its network has "
            f"{', '.join(t.name for t in tensors) or 'none'}"
        )
    for tensor, value in zip(tensors, values, strict=True):
        dtype = library().dtype._from(tensor.dtype).to(torch.dtype)
        if dtype is not _dtype(value, s):
            raise NetworkError(f"{what} {tensor.name} would be {dtype} and not {value.dtype}")
        shape = tuple(tensor.shape)
        fits = len(shape) == value.ndim and all(
            a == b or a == -1 or is_symbolic(b) for a, b in zip(shape, value.shape, strict=True)
        )
        if not fits:
            raise NetworkError(
                f"{what} {tensor.name} would have shape {list(shape)} and not {list(value.shape)}"
            )


def _cause(error: Exception) -> str:
    """Return the type and first lines of an error, without the node that fx adds."""
    text = str(error).partition("\n\nWhile executing")[0].strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def log_kept(lines: list[str]) -> Iterator[None]:
    """Collect what TensorRT logs as warnings and errors in ``lines`` and show none of it.

    The converters' log of every node they convert is off too.
    """

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname}: {record.getMessage()}")

    logger, keeper = logging.getLogger(CONTEXT_LOGGER), Keeper(logging.WARNING)
    converters = logging.getLogger("torch_tensorrt")
    propagate, level = logger.propagate, converters.level
    logger.addHandler(keeper)
    logger.propagate = False
    converters.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(keeper)
        logger.propagate = propagate
        converters.setLevel(level)
