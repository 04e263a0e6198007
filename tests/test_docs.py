"""README and docs are true: examples run, shown output is what they print, commands and links work.

A ``python`` block is run in the file's own namespace, in reading order. A ``text`` block right
after it is what it prints; ``...`` in it stands for anything, as in doctest.
"""

import contextlib
import doctest
import io
import re
import shlex
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


class Fence(NamedTuple):
    line: int
    language: str
    text: str
    adjoins: bool  # nothing but blank lines between it and the fence before it


def fences(text):
    found, end = [], None
    for match in FENCE.finditer(text):
        adjoins = end is not None and not text[end : match.start()].strip()
        line = text.count("\n", 0, match.start()) + 2
        found.append(Fence(line, match[1], match[2], adjoins))
        end = match.end()
    return found


def run_examples(path, text):
    """Run the python blocks of a page and compare what they print with what the page shows."""
    names = {"__name__": "__main__"}
    printed = None
    for fence in fences(text):
        if fence.language == "python":
            code = compile("\n" * (fence.line - 1) + fence.text, str(path), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(code, names)
            printed = out.getvalue()
        elif fence.language == "text" and fence.adjoins and printed is not None:
            same = doctest.OutputChecker().check_output(fence.text, printed, doctest.ELLIPSIS)
            assert same, f"{path}:{fence.line} shows\n{fence.text}\nbut it prints\n{printed}"
            printed = None
        else:
            printed = None


@pytest.mark.inductor
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_examples_run_and_print_what_is_shown(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(path, path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_parse(path):
    from hierpart.cli.command_line import _parser

    for fence in fences(path.read_text()):
        if fence.language not in ("sh", "console"):
            continue
        for line in fence.text.splitlines():
            words = shlex.split(line, comments=True)
            if "hierpart" in words[:3] and words[words.index("hierpart") + 1 :]:
                _parser().parse_args(words[words.index("hierpart") + 1 :])  # exits if it is wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    targets = LINK.findall(path.read_text())
    assert [t for t in targets if not (path.parent / t).exists()] == []


def test_wrong_examples_are_noticed():
    good = "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n"
    run_examples("page", good)
    run_examples("page", good.replace("42", "4..."))
    with pytest.raises(AssertionError, match="page:6 shows"):
        run_examples("page", good.replace("42", "43"))
    with pytest.raises(NameError):
        run_examples("page", "```python\nmissing\n```\n")


def test_every_page_is_read():
    assert len(FILES) > 5
    assert sum(f.language == "python" for p in FILES for f in fences(p.read_text())) > 10
