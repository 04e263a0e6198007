"""TensorRT: asks the converters about every node, and builds engines even without a GPU.

Through torch_tensorrt in either of its packagings (see
:mod:`hierpart.backends.tensorrt.library`). On a GPU blocks run as engines. On a machine without
one, TensorRT-RTX builds them for a named ``target`` and the blocks run eagerly there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends.protocol import CompiledBlock
from hierpart.backends.tensorrt import library
from hierpart.backends.tensorrt.settings import RTX_TARGETS, Settings
from hierpart.errors import BackendUnavailableError
from hierpart.plan import Reason, Verdict

KEPT = frozenset(
    {
        "aten.linear.default",
        "aten.layer_norm.default",
        "aten.scaled_dot_product_attention.default",
        "aten.gelu.default",
    }
)
_YES = Verdict("tensorrt", True)


class TensorRTBackend:
    """Builds TensorRT engines: tensors in, fresh tensors out, weights inside.

    Args:
        settings: How engines are built.
    """

    name = "tensorrt"
    takes_scalars = False
    keeps_aliases = False
    max_rank = 8
    keep_ops = KEPT
    bakes_weights = True
    """``compile`` gets the weights themselves and puts them into the engine."""
    cache_option = "engine_cache"
    """Its own option for the folder of its engines."""
    portable = True
    """What ``dump`` writes is not tied to the device that the model was on."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def configured(self, options: Mapping[str, Any]) -> TensorRTBackend:
        """Return the backend with these options.

        Raises:
            OptionError: An option is not legal.
        """
        return TensorRTBackend(Settings.of(options)) if options else self

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Check the options.

        Raises:
            OptionError: A name or a value is not legal; the message says what is.
        """
        Settings.of(options)

    def available(self) -> str | None:
        """Return why no engines can be built here, ``None`` where they can.

        A machine without a GPU can build engines of TensorRT-RTX for a ``target``.
        """
        why = library.problem()
        if why is None and not self.settings.target:
            why = self._without_target()
        if why is None and self.settings.may_refit and library.gpu() is None:
            why = "refittable engines and engines without weights are built only where a GPU is"
        if why is None:
            try:
                library.library()
            except BackendUnavailableError as error:
                return str(error)
        return why

    def _without_target(self) -> str | None:
        capability = library.gpu()
        if capability is None:
            if library.is_rtx():
                return (
                    'no GPU and no target; options={"tensorrt": {"target": "sm_89"}} builds '
                    "engines for another machine"
                )
            return "no GPU"
        name = f"sm_{capability[0]}{capability[1]}"
        if library.is_rtx() and name not in RTX_TARGETS:
            return f"TensorRT-RTX does not run on {name}; it runs on {', '.join(RTX_TARGETS)}"
        return None

    def verdict(self, node: Node) -> Verdict:
        """Return yes where a converter takes the node, else no with the reason."""
        why = self.available()
        if why is not None:
            return Verdict(self.name, False, Reason.BACKEND_UNAVAILABLE, why)
        from hierpart.backends.tensorrt.support import support_for

        refusal = support_for(self.settings).answer(node).refusal
        return _YES if refusal is None else Verdict(self.name, False, *refusal)

    def compile(
        self, block: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> CompiledBlock:
        """Build the engine of a block, or take it from the engine cache.

        Args:
            block: As in the protocol.
            inputs: One value a placeholder; a real tensor is a weight and goes into the engine.
            options: The backend's own options.

        Raises:
            BackendUnavailableError: No engines can be built here.
            NetworkError: The block's network cannot be made; the message says why.
            EngineError: TensorRT built no engine; the message has what it logged.
        """
        why = self.available()
        if why is not None:
            raise BackendUnavailableError(f"TensorRT: {why}")
        from hierpart.backends.tensorrt.cache import kept_or_built
        from hierpart.backends.tensorrt.engine import build, key_of
        from hierpart.backends.tensorrt.lowering import lower
        from hierpart.backends.tensorrt.running import EngineBlock
        from hierpart.backends.tensorrt.support import support_for

        weights = {i: v for i, v in enumerate(inputs) if is_weight(v)}
        lowered = lower(block, weights, support_for(self.settings).answer)
        kept = False
        if self.settings.engine_cache is None:
            engine = build(lowered, self.settings)
        else:
            engine, kept = kept_or_built(
                Path(self.settings.engine_cache), key_of(lowered, self.settings),
                lambda: build(lowered, self.settings),
            )  # fmt: skip
        # The cache tells refittable engines apart by all but their weights.
        inside = {} if kept and engine.refittable else weights
        return EngineBlock(engine, block, inside, kept)

    def dump(self, made: CompiledBlock) -> bytes:
        """Return a compiled block as bytes for :meth:`restore`."""
        engine: Any = getattr(made, "engine", None)
        data: bytes = engine.to_bytes()
        return data

    def restore(self, data: bytes, block: GraphModule) -> CompiledBlock:
        """Return the compiled block that :meth:`dump` wrote; needs neither a GPU nor TensorRT.

        Raises:
            DamagedEngineError: The bytes are damaged.
        """
        from hierpart.backends.tensorrt.engine import Engine
        from hierpart.backends.tensorrt.running import EngineBlock

        return EngineBlock(Engine.from_bytes(data), block, {})

    def fingerprint(self) -> str:
        """Return the versions and the settings that engines depend on."""
        versions = [f"{name}={v}" for name, v in library.versions().items()]
        return " ".join([self.name, *versions, self.settings.engine_text()])


def is_weight(value: Any) -> bool:
    """Whether a block's input is the tensor itself and no example of one."""
    from torch._subclasses import FakeTensor

    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
