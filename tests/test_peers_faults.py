"""docs/peers-faults.md is true: every block of it runs, torch_tensorrt's where it is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hierpart.testing import adapters

PAGE = Path(__file__).resolve().parent.parent / "docs" / "peers-faults.md"
FENCE = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_faults_are_there(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program"])  # its settings parse the program's arguments
    fences = FENCE.findall(PAGE.read_text())
    names = {}
    for language, code in fences:
        if language == "python":
            exec(code, names)
    try:
        adapters.torch_tensorrt_hierarchical(names["written"](), **names["options"])
    except adapters.Unavailable as error:
        pytest.skip(str(error))
    theirs = [code for language, code in fences if language == "py"]
    assert len(theirs) == 5
    for code in theirs:
        exec(code, names)
