"""Overloads of ATen operators by name, as the dispatcher knows them."""

from __future__ import annotations

import functools

import torch


@functools.cache
def overloads(name: str) -> tuple[torch._ops.OpOverload, ...]:
    """Return the dispatcher's overloads of ``aten::name``; empty if there is no such op.

    Overloads that only TorchScript has (on Python lists and numbers) are left out.
    """
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ()
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return tuple(o for o in (getattr(packet, n) for n in names) if op_name(o) in _dispatched())


def op_name(op: torch._ops.OpOverload) -> str:
    """Return the dispatcher's name, as ``aten::add.Tensor``."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return name


@functools.cache
def _dispatched() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())
