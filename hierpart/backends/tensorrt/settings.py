"""The TensorRT backend's own options, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hierpart.backends.tensorrt import library
from hierpart.errors import OptionError, nearest

RTX_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
"""What TensorRT-RTX builds for; 9.0 (H100, H200) is not among them."""
TILING = ("none", "fast", "moderate", "full")
EXPLAINED = {
    "precision": "engines compute in the model's own dtypes; convert the model with model.half()",
    "enabled_precisions": (
        "engines compute in the model's own dtypes; convert the model with model.half()"
    ),
    "device": "the device is that of the model and its inputs",
    "min_block_size": "it is an option of hierpart's own and not of a backend",
    "torch_executed_ops": "it is an option of hierpart's own and not of a backend",
    "cache_built_engines": "name a folder with engine_cache instead",
    "engine_cache_dir": "the folder is named with engine_cache",
}
"""Settings that other tools have, and what stands for them here."""


@dataclass(frozen=True)
class Settings:
    """How engines are built.

    Attributes:
        target: Compute capabilities, as ``sm_89``, that engines are to run on; empty for the GPU
            at hand. One engine serves all of them.
        engine_cache: Folder that keeps engines from one process to the next; ``None`` for none.
        max_size: Upper bound for symbolic sizes that have none of their own; ``None``: blocks with
            such sizes are refused.
        truncate_double: Whether float64 may be computed, read and written as float32.
        workspace_size: Most bytes of scratch memory; 0 for no limit.
        optimization_level: 0 (builds fast) to 5 (runs fast); ``None`` for TensorRT's own.
        disable_tf32: Whether float32 products keep to full precision.
        sparse_weights: Whether weights of which two in four are zero may use sparse kernels.
        max_aux_streams: Most streams besides the main one; ``None`` for TensorRT's own.
        tiling_optimization_level: ``none``, ``fast``, ``moderate`` or ``full``.
        timing_cache: File of kernel timings; TensorRT only, RTX times nothing.
        hardware_compatible: Whether engines run on later GPUs than the one at hand; TensorRT only.
        version_compatible: Whether engines run with later versions; TensorRT only.
        refittable: Whether a weight that changes is put into the engine instead of the block
            running eagerly. RTX builds such engines only where there is a GPU.
        strip_weights: Whether engines are kept and saved without their weights, which they get
            from the model at the first call; they are refittable.
    """

    target: tuple[str, ...] = ()
    engine_cache: str | None = None
    max_size: int | None = None
    truncate_double: bool = False
    workspace_size: int = 0
    optimization_level: int | None = None
    disable_tf32: bool = False
    sparse_weights: bool = False
    max_aux_streams: int | None = None
    tiling_optimization_level: str = "none"
    timing_cache: str | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False
    refittable: bool = False
    strip_weights: bool = False

    @property
    def may_refit(self) -> bool:
        """Whether engines take other weights after they are built."""
        return self.refittable or self.strip_weights

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Check the options and return them as settings.

        Raises:
            OptionError: A name or a value is not legal; the message says what is.
        """
        names = [f.name for f in fields(cls)]
        for name in options:
            if name in EXPLAINED:
                raise OptionError(f"TensorRT has no setting {name!r} here: {EXPLAINED[name]}")
            if name not in names:
                raise OptionError(f"TensorRT has no setting {name!r}" + nearest(name, names))
        checked = {name: _check(name, value) for name, value in options.items()}
        return cls(**checked)

    def to_json(self) -> dict[str, Any]:
        """Return all but paths of this machine as plain values, for :meth:`from_json`."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in plain.items() if k not in _PATHS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Return what :meth:`to_json` wrote."""
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**kept)

    def engine_text(self) -> str:
        """Return everything that engines depend on as text."""
        kept = [f.name for f in fields(self) if f.name not in _PATHS]
        return " ".join(f"{name}={getattr(self, name)!r}" for name in kept)


_PATHS = ("engine_cache", "timing_cache")
_TENSORRT_ONLY = ("timing_cache", "hardware_compatible", "version_compatible")
_RANGES = {
    "max_size": (1, 2**31 - 1),
    "workspace_size": (0, 2**63 - 1),
    "optimization_level": (0, 5),
    "max_aux_streams": (0, 64),
}


def _check(name: str, value: Any) -> Any:
    if name in _TENSORRT_ONLY and value and library.is_rtx():
        raise OptionError(f"TensorRT-RTX has no {name}; it is a setting of TensorRT's")
    if name == "target":
        return targets(value)
    if name in _PATHS:
        return None if value is None else str(_path(name, value))
    if name == "tiling_optimization_level":
        if value not in TILING:
            raise OptionError(f"{name}={value!r} is not legal" + nearest(str(value), TILING))
        return value
    if name in _RANGES:
        low, high = _RANGES[name]
        whole = isinstance(value, int) and not isinstance(value, bool)
        optional = value is None and name != "workspace_size"
        if not optional and not (whole and low <= value <= high):
            raise OptionError(f"{name} takes a whole number from {low} to {high}, not {value!r}")
        return value
    if not isinstance(value, bool):
        raise OptionError(f"{name} takes True or False, not {value!r}")
    return value


def _path(name: str, value: Any) -> Path:
    try:
        return Path(value)
    except TypeError:
        raise OptionError(f"{name} takes a path, not {value!r}") from None


def targets(value: Any) -> tuple[str, ...]:
    """Return compute capabilities as ``sm_89`` and the like, in ascending order.

    Args:
        value: One or several of ``"sm_89"``, ``"8.9"`` and ``(8, 9)``.

    Raises:
        OptionError: It is no compute capability, or none that engines are built for.
    """
    if value is None:
        return ()
    several = not isinstance(value, str) and isinstance(value, Sequence)
    if several and len(value) == 2 and all(isinstance(v, int) for v in value):
        several = False
    found = [_target(v) for v in (value if several else (value,))]
    if found and not library.is_rtx() and library.installed() is not None:
        raise OptionError(
            "TensorRT builds engines for the GPU at hand only; to build for a target install "
            f"{library.RTX}"
        )
    return tuple(sorted(set(found), key=RTX_TARGETS.index))


def _target(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        value = f"{value[0]}.{value[1]}"
    match = re.fullmatch(r"(?:sm_?)?(\d+?)\.?(\d)", value) if isinstance(value, str) else None
    name = f"sm_{match[1]}{match[2]}" if match else str(value)
    if name not in RTX_TARGETS:
        legal = ", ".join(RTX_TARGETS)
        raise OptionError(f"TensorRT-RTX builds no engines for target {value!r}; legal: {legal}")
    return name
