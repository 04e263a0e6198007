"""Engines: built from a lowered block, and written to and read from bytes.

No engine is ever told apart by its bytes: two builds of one network differ.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from hierpart.backends.tensorrt import library
from hierpart.backends.tensorrt.lowering import Lowered
from hierpart.backends.tensorrt.network import (
    Network,
    NetworkError,
    log_kept,
    make_network,
    own_settings,
)
from hierpart.backends.tensorrt.ranges import Range, range_of
from hierpart.backends.tensorrt.settings import Settings
from hierpart.graph import canonical
from hierpart.page import size
from hierpart.version import __version__

MAGIC = b"hierpart-engine-2\n"


class EngineError(RuntimeError):
    """No engine could be built; the message has what TensorRT logged."""


class DamagedEngineError(ValueError):
    """Bytes are no engine written by :meth:`Engine.to_bytes`, or not all of it."""


@dataclass(frozen=True)
class Engine:
    """A built engine and how to call it.

    Attributes:
        plan: What TensorRT serialised.
        inputs: Names of its inputs, in order.
        outputs: Names of its outputs, in order.
        places: Position among the block's placeholders of each input.
        results: Where each of the block's outputs comes from: a position among ``outputs``, or
            (negative, minus one) a placeholder of the block.
        weights: Positions among the block's placeholders of the weights inside.
        digests: Digest of the values of each of them.
        ranges: Range of the shape of each input.
        target: Compute capabilities that it was built for; empty for the GPU at hand.
        settings: How it was built, as :meth:`Settings.to_json` says it.
        refittable: Whether it takes other weights.
        stripped: Whether its weights are yet to be put in.
        versions: What it was built with, by package.
        seconds: How long the build took.
        layers: Layers of its network.
        log: What TensorRT warned of.
    """

    plan: bytes = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    places: tuple[int, ...]
    results: tuple[int, ...]
    weights: tuple[int, ...]
    digests: tuple[str, ...]
    ranges: tuple[Range, ...]
    target: tuple[str, ...]
    settings: Mapping[str, Any]
    refittable: bool
    stripped: bool
    versions: Mapping[str, str]
    seconds: float
    layers: int
    log: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the engine as bytes: a line of magic, a digest, a JSON header, the plan."""
        data = asdict(self)
        del data["plan"]
        header = json.dumps(data, sort_keys=True).encode()
        body = struct.pack("<Q", len(header)) + header + self.plan
        return MAGIC + hashlib.sha256(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Engine:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            DamagedEngineError: It is something else, or damaged.
        """
        start = len(MAGIC) + 32
        if not data.startswith(MAGIC) or len(data) < start + 8:
            raise DamagedEngineError("not an engine of this format")
        if hashlib.sha256(data[start:]).digest() != data[len(MAGIC) : start]:
            raise DamagedEngineError("damaged: its digest does not match")
        (length,) = struct.unpack("<Q", data[start : start + 8])
        header = json.loads(data[start + 8 : start + 8 + length])
        ranges = tuple(Range(*(tuple(r[k]) for k in _RANGE)) for r in header.pop("ranges"))
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in header.items()
        }
        return cls(plan=data[start + 8 + length :], ranges=ranges, **fields)

    def describe(self) -> str:
        """Return what it is in a few words, for reports."""
        target = ", ".join(self.target) or "the GPU at hand"
        kind = "without weights" if self.stripped else "refittable" if self.refittable else ""
        return (
            f"engine for {target}: {size(len(self.plan))}, {self.layers} layers, "
            f"{len(self.inputs)} in, {len(self.outputs)} out, built in {self.seconds:.2f} s"
            + (f", {kind}" if kind else "")
        )


_RANGE = ("least", "likeliest", "greatest")


def build(lowered: Lowered, settings: Settings) -> Engine:
    """Build the engine of a lowered block.

    Raises:
        NetworkError: The network cannot be made.
        EngineError: TensorRT did not build it.
    """
    log: list[str] = []
    started = time.perf_counter()
    with log_kept(log), torch.no_grad():
        network = make_network(lowered.block, settings)
        plan = _plan(network, settings, log)
    return Engine(
        plan=plan, inputs=network.inputs, outputs=network.outputs, places=lowered.inputs,
        results=lowered.outputs, weights=lowered.weights,
        digests=weight_digests(lowered), ranges=network.ranges,
        target=settings.target, settings=settings.to_json(), refittable=settings.may_refit,
        stripped=settings.strip_weights, versions=library.versions(),
        seconds=time.perf_counter() - started, layers=network.layers, log=tuple(log),
    )  # fmt: skip


def _plan(network: Network, settings: Settings, log: list[str]) -> bytes:
    interpreter = network.interpreter
    with own_settings(settings):
        config = interpreter._populate_trt_builder_config()
        if settings.timing_cache:
            interpreter._create_timing_cache(config, settings.timing_cache)
        if settings.target:
            _aim(config, settings.target)
        try:
            plan = interpreter.builder.build_serialized_network(interpreter.ctx.net, config)
        except Exception as error:  # TensorRT's own and its logger's errors
            raise EngineError("\n".join([f"TensorRT built no engine: {error}", *log])) from error
        finally:
            interpreter.ctx.clear_cpu_weights_reference_holder()
        if plan is None:
            raise EngineError("\n".join(["TensorRT built no engine", *log]))
        if settings.timing_cache:
            interpreter._save_timing_cache(config, settings.timing_cache)
    return bytes(memoryview(plan))


def _aim(config: Any, target: Sequence[str]) -> None:
    """Set the compute capabilities that the engine is to run on."""
    import tensorrt

    config.num_compute_capabilities = len(target)
    for i, name in enumerate(target):
        capability = getattr(tensorrt.ComputeCapability, name.replace("_", "").upper(), None)
        if capability is None:
            raise NetworkError(f"this version of TensorRT-RTX does not know the target {name}")
        config.set_compute_capability(capability, i)


def key_of(lowered: Lowered, settings: Settings) -> str:
    """Return the digest of everything that the engine of a block depends on.

    Covered: ops, arguments, wiring, constants and weights by value, dtypes, shapes and their
    ranges, which outputs are inputs, the settings, the target, and all versions. Weights of
    refittable engines are covered by dtype and shape alone: one engine serves all their values.
    """
    block = canonical(lowered.block)
    digest = hashlib.sha256(block.key.encode())
    values = [n.meta["val"] for n in lowered.block.graph.find_nodes(op="placeholder")]
    ranges = [asdict(range_of(v, settings.max_size)) for v in values]
    facts = (ranges, lowered.inputs, lowered.outputs, settings.engine_text(), __version__,
             sorted(library.versions().items()), _hardware(settings))  # fmt: skip
    digest.update(repr(facts).encode())
    refitted = {f"weight_{i}" for i in lowered.weights} if settings.may_refit else set()
    for name in block.attributes:
        value = getattr(lowered.block, name)
        text = f"{value.dtype} {tuple(value.shape)}" if name in refitted else weight_digest(value)
        digest.update(text.encode())
    return digest.hexdigest()


def _hardware(settings: Settings) -> str:
    """Return what the engine is built for where that is the GPU at hand."""
    if settings.target or not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.get_device_name()} {library.gpu()}"


def weight_digests(lowered: Lowered) -> tuple[str, ...]:
    """Return the digest of each weight inside, in the order of ``lowered.weights``."""
    return tuple(weight_digest(getattr(lowered.block, f"weight_{i}")) for i in lowered.weights)


def weight_digest(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's dtype, shape and values."""
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    if plain.numel():
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
