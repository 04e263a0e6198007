"""New weights for an engine that is built already (``refittable``, ``strip_weights``).

What TensorRT calls the weights of a network hangs on the graph alone, so the network is made again
with the new weights, which takes milliseconds, and tells each weight by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from hierpart.backends.tensorrt.engine import Engine, EngineError, weight_digests
from hierpart.backends.tensorrt.library import library
from hierpart.backends.tensorrt.lowering import Lowered, lower
from hierpart.backends.tensorrt.network import log_kept, make_network
from hierpart.backends.tensorrt.settings import Settings
from hierpart.backends.tensorrt.support import support_for


def refitted(engine: Engine, block: GraphModule, weights: Mapping[int, torch.Tensor]) -> Engine:
    """Return the engine with these weights inside, in place of those it has or was stripped of.

    Args:
        engine: A refittable engine; not changed.
        block: The block that it was built of, as a graph.
        weights: The tensor of each placeholder of the block that is a weight, by position.

    Raises:
        NetworkError: The network cannot be made with these weights.
        EngineError: TensorRT does not take them; the message says why.
    """
    settings = Settings.from_json(engine.settings)
    lowered = lower(block, weights, support_for(settings).answer)
    log: list[str] = []
    with log_kept(log), torch.no_grad():
        named = named_weights(lowered, settings)
        plan = refitted_plan(engine.plan, named, log)
    return replace(engine, plan=plan, digests=weight_digests(lowered), stripped=False)


def named_weights(lowered: Lowered, settings: Settings) -> dict[str, torch.Tensor]:
    """Return the values of the network's weights by TensorRT's names for them.

    Raises:
        NetworkError: The network cannot be made.
    """
    return dict(make_network(lowered.block, settings).interpreter.ctx.weight_refit_map)


def refitted_plan(plan: bytes, named: Mapping[str, torch.Tensor], log: list[str]) -> bytes:
    """Return a serialised engine with other weights; needs the GPU that it is for.

    Args:
        plan: What TensorRT serialised.
        named: The value of each weight, by TensorRT's name for it.
        log: What TensorRT logged, for the message of an error.

    Raises:
        EngineError: The engine cannot be read, has a weight that ``named`` lacks, or does not take
            the values.
    """
    library()
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    engine = tensorrt.Runtime(logger).deserialize_cuda_engine(plan)
    if engine is None:
        raise EngineError("\n".join(["TensorRT cannot read the engine", *log]))
    refitter = tensorrt.Refitter(engine, logger)
    held = []  # TensorRT reads the memory of the values when it refits, not before
    for name in refitter.get_all_weights():
        if name not in named:
            raise EngineError(f"the engine has a weight {name!r} that the block does not give")
        value = named[name].detach().cpu().contiguous()
        held.append(value)
        refitter.set_named_weights(name, _weights(value), tensorrt.TensorLocation.HOST)
    if not refitter.refit_cuda_engine():
        raise EngineError("\n".join(["TensorRT did not take the weights", *log]))
    return bytes(memoryview(engine.serialize_with_config(_whole(engine))))


def _weights(value: torch.Tensor) -> Any:
    import tensorrt

    dtype = library().dtype._from(value.dtype).to(tensorrt.DataType)
    return tensorrt.Weights(dtype, value.data_ptr(), value.numel())


def _whole(engine: Any) -> Any:
    """Return how to serialise an engine with its weights, so that it can be refitted again."""
    import tensorrt

    config, flags = engine.create_serialization_config(), tensorrt.SerializationFlag
    config.clear_flag(flags.EXCLUDE_WEIGHTS)
    if hasattr(flags, "INCLUDE_REFIT"):  # TensorRT 10.14 and later
        config.set_flag(flags.INCLUDE_REFIT)
    return config
