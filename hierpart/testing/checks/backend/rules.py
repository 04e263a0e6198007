"""The rules that :func:`hierpart.testing.check_backend` judges, and the error that names one."""

from __future__ import annotations

BACKEND_RULES = {
    "members": "it has every member of the protocol, of the right type",
    "verdict": "a verdict names the backend, is the same each time, says why not, changes nothing",
    "honest": "what it says it takes, it compiles",
    "result": "a compiled block returns a flat tuple or list of the block's outputs",
    "values": "a compiled block gives what eager gives",
    "strides": "a backend with exact_strides or keeps_aliases keeps strides",
    "inputs": "a compiled block writes what eager writes, and nothing else",
    "aliases": "where keeps_aliases is true, outputs share storage with inputs as in eager",
    "calls": "a call leaves what earlier calls returned as it was",
    "dynamic": "a block with symbolic sizes is right for other sizes",
    "boxed": "boxed gives what the call gives",
    "save": "what restore makes of what dump wrote gives the same; what is cut short is an error",
    "errors": "what fails raises an Exception; an unknown option raises OptionError",
}
"""What a backend has to keep, by name."""


class BackendViolation(AssertionError):  # noqa: N818 -- it names what happened, not an error
    """A backend breaks a rule.

    Attributes:
        rule: A key of ``BACKEND_RULES``.
        detail: What was wrong.
        reproduction: A Python program that shows it again, or an empty string.
    """

    def __init__(self, rule: str, detail: str, reproduction: str = "") -> None:
        self.rule, self.detail, self.reproduction = rule, detail, reproduction
        text = f"{rule} ({BACKEND_RULES[rule]}): {detail}"
        super().__init__(f"{text}\n\n{reproduction}" if reproduction else text)


def require(holds: object, rule: str, detail: str) -> None:
    """Raise :class:`BackendViolation` unless ``holds``."""
    if not holds:
        raise BackendViolation(rule, detail)
