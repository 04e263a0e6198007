"""The page in a real browser: it filters, sorts and opens, says no error, and stays quick when large.

Needs ``pip install playwright`` and a Chromium: Debian's, or ``playwright install chromium``.
"""

import contextlib
import shutil
import time

import pytest
import torch

import hierpart
from tests.large_report import large_report
from tests.test_html import TAKES, Choice

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser():
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium: {error.message.splitlines()[0]}")
        yield started
        started.close()


@contextlib.contextmanager
def opened(browser, path, **settings):
    """Open a page and check at the end that it complained of nothing and asked for nothing."""
    said, asked = [], []
    context = browser.new_context(**settings)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert said == []
    assert asked == [path.as_uri()]


def shown(page):
    return page.locator("#node-table tbody tr:visible").count()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "small.html"
    large_report(12, 60).to_html(path)
    return path


def test_filters_filter(browser, small):
    report = large_report(12, 60)
    with opened(browser, small) as page:
        assert shown(page) == 60
        page.select_option("#filter-owner", "eager")
        eager = [n for n, owner in report.plan.owner.items() if owner == "eager"]
        assert shown(page) == len(eager)
        page.fill("#filter-text", "addmm NOT LISTED")
        addmm = [n for n in eager if "addmm" in report.plan.ops[n]]
        sync_api.expect(page.locator("#filter-count")).to_have_text(f"{len(addmm)} of 60 nodes")
        assert shown(page) == len(addmm)
        page.fill("#filter-text", "")
        page.select_option("#filter-owner", "")
        page.check("#filter-refused")
        refused = sum(owner != "tensorrt" for owner in report.plan.owner.values())
        sync_api.expect(page.locator("#filter-count")).to_have_text(f"{refused} of 60 nodes")


def test_columns_sort_both_ways_by_number_and_by_text(browser, small):
    with opened(browser, small) as page:
        cells = page.locator("#node-table tbody tr td:first-child")
        head = page.locator("#node-table th").first
        head.click()
        assert cells.all_inner_texts() == [str(n) for n in reversed(range(60))]
        head.press("Enter")
        assert cells.all_inner_texts() == [str(n) for n in range(60)]
        page.locator("#node-table th", has_text="node").click()
        names = page.locator("#node-table tbody tr td:nth-child(2)").all_inner_texts()
        assert names == sorted(names)


def test_boxes_open_and_lead_to_the_table(browser, small):
    with opened(browser, small) as page:
        inside = page.locator("#block-3 table").first
        assert not inside.is_visible()
        page.locator(".strip a").nth(3).click()  # the strip leads to the box and opens it
        assert inside.is_visible()
        page.locator("#block-3 button").click()
        block = large_report(12, 60).plan.blocks[3]
        assert shown(page) == len(block.nodes)


def test_trees_of_branches_open(browser, tmp_path):
    path = tmp_path / "nested.html"
    hierpart.explain(Choice(), (torch.randn(2, 4),), **TAKES).to_html(path)
    with opened(browser, path) as page:
        tree = page.locator("details.branch").first
        assert tree.locator("svg").count() == 1
        assert not tree.locator("svg").is_visible()
        tree.locator("summary").first.click()
        assert tree.locator("svg").is_visible()


def test_tables_are_there_without_javascript(browser, small):
    with opened(browser, small, java_script_enabled=False) as page:
        assert page.locator("#node-table tbody tr").count() == 60
        assert page.locator("#node-table").is_visible()
        assert not page.locator("#filter-text").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, small, scheme):
    with opened(browser, small, color_scheme=scheme) as page:
        ink, ground = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor] }"
        )

        def light(colour):
            return sum(int(part) for part in colour.strip("rgb()").split(",")) / 3

        assert (light(ink) < light(ground)) == (scheme == "light")
        assert abs(light(ink) - light(ground)) > 150


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_not_wider_than_the_window(browser, small, width):
    with opened(browser, small, viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_five_thousand_nodes_stay_usable(browser, tmp_path):
    path = tmp_path / "large.html"
    large_report(300, 5000).to_html(path)
    started = time.perf_counter()
    with opened(browser, path) as page:
        assert page.locator("#block-299").count() == 1
        assert time.perf_counter() - started < 20
        script = """() => {
            const start = performance.now();
            document.getElementById("filter-text").value = "addmm";
            document.getElementById("filter-owner").dispatchEvent(new Event("change"));
            document.querySelectorAll("#node-table th")[2].click();
            return [document.getElementById("node-table").offsetHeight, performance.now() - start];
        }"""
        height, spent = page.evaluate(script)
        assert height > 10_000
        assert spent < 10_000  # milliseconds, with room for busy machines
        assert "of 5000 nodes" in page.inner_text("#filter-count")
