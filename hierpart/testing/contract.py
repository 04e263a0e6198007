"""The error of the kit's checks: which rule of the contract was broken, and how to see it again."""

from __future__ import annotations

CONTRACT = {
    "C1": "every callable node is in exactly one block; every get_attr is listed",
    "C2": "blocks in order respect every dependency",
    "C3": "effects keep their order; no read of a storage moves across a write to it",
    "C4": "a node is owned by the first backend that said yes, or a recorded reason says why not",
    "C5": "no accelerated block is under its backend's minimum, save the stated exemptions",
    "C6": "values that cross are tensors or symbolic scalars",
    "C7": "attributes are shared by identity and keep their names; placeholders come first",
    "C8": "the result is bit-identical to the original graph run by fx.Interpreter",
    "C9": "one graph gives one plan",
    "C10": "the input module is unchanged and can be split again",
    "C11": "metadata survives",
}
"""The rules that the checks judge, by number."""


class ContractViolation(AssertionError):  # noqa: N818 -- it names what happened, not an error
    """A partition breaks the contract.

    Attributes:
        contract: Number of the rule, ``"C1"`` to ``"C11"``.
        reproduction: A Python program that shows it again, or an empty string.
    """

    def __init__(self, contract: str, detail: str, reproduction: str = "") -> None:
        self.contract = contract
        self.detail = detail
        self.reproduction = reproduction
        text = f"{contract} ({CONTRACT[contract]}): {detail}"
        super().__init__(f"{text}\n\n{reproduction}" if reproduction else text)


def require(holds: object, contract: str, detail: str) -> None:
    """Raise :class:`ContractViolation` unless ``holds``."""
    if not holds:
        raise ContractViolation(contract, detail)
