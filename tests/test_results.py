"""README's figures are those of ``benchmarks/results``, which are of this release or the last."""

import re

import pytest

import hierpart
from benchmarks import plots, readme, run


def test_readme_shows_the_results():
    text = readme.README.read_text()
    assert text.count(readme.BEGIN) == text.count(readme.END) == 1
    assert readme.replaced(text) == text, "run: python -m benchmarks.readme"
    changed = text.replace("| distinct results", "| distinct outcomes")
    assert changed != text
    assert readme.replaced(changed) == text


@pytest.mark.parametrize("name", run.NAMES)
def test_results_are_at_most_one_release_old(name):
    released = re.findall(
        r"^## \[(\d\S*)\]", readme.README.with_name("CHANGELOG.md").read_text(), re.M
    )
    assert plots.load(name)["about"]["hierpart"] in {hierpart.__version__, *released[:1]}


@pytest.mark.parametrize("name", plots.PLOTS)
def test_pictures_are_those_of_the_results(name, tmp_path):
    pytest.importorskip("matplotlib", reason="needs: pip install -e '.[plots]'")
    drawn = plots.draw(name, tmp_path).read_text()
    kept = (plots.RESULTS / f"{name}.svg").read_text()
    words = re.compile(r"<text.*?</text>|<path d.*?>", re.DOTALL)
    assert words.findall(drawn) == words.findall(kept), "run: python -m benchmarks.plots"
