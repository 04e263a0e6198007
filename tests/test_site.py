"""The documentation builds without a warning, and the API page leaves out no public name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hierpart
from hierpart import testing

ROOT = Path(__file__).resolve().parent.parent


def test_the_api_page_has_every_public_name():
    shown = set(re.findall(r"^::: .*\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    public = {*hierpart.__all__, *testing.__all__} - {"adapters"}
    assert public - shown == set()


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - set(re.findall(r"(\S+\.md)$", nav, re.MULTILINE)) == set()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocstrings", reason="needs: pip install -e '.[docs]'")
    pytest.importorskip("material", reason="needs: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api" / "index.html").stat().st_size > 100_000
