"""TensorRT by name: says that it cannot compile here, so that its blocks go to the next backend.

With a ``backend_support_map`` that names its ops, graphs are split for TensorRT and can be taken
further by hand. No engine is built, so without such a map every node is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends import CompiledBlock
from hierpart.errors import BackendUnavailableError
from hierpart.plan import Reason, Verdict

PACKAGES = ("torch-tensorrt", "torch-tensorrt-rtx")


class TensorRTBackend:
    """The traits of TensorRT blocks: tensors in, fresh tensors out."""

    name = "tensorrt"
    takes_scalars = False
    keeps_aliases = False
    max_rank = 8
    keep_ops = frozenset(
        {
            "aten.linear.default",
            "aten.layer_norm.default",
            "aten.scaled_dot_product_attention.default",
            "aten.gelu.default",
        }
    )

    def available(self) -> str | None:
        """Return why no engine can be built; this version of hierpart builds none."""
        installed = [name for name in PACKAGES if _version(name)]
        if not installed:
            return f"neither {PACKAGES[0]} nor {PACKAGES[1]} is installed"
        return f"this version of hierpart does not build engines with {installed[0]} yet"

    def verdict(self, node: Node) -> Verdict:
        """Return no, with the reason that no engine can be built."""
        return Verdict(self.name, False, Reason.BACKEND_UNAVAILABLE, self.available() or "")

    def compile(
        self, block: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> CompiledBlock:
        """Build no engine.

        Raises:
            BackendUnavailableError: Always, with the reason.
        """
        raise BackendUnavailableError(f"TensorRT: {self.available()}")

    def fingerprint(self) -> str:
        """Return the versions of PyTorch and of torch-tensorrt."""
        found = [f"{name}={v}" for name in PACKAGES if (v := _version(name))]
        return " ".join([self.name, f"torch={torch.__version__}", *found])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
