"""The HTML page holds what the report holds, escaped, in one file; large reports stay small."""

import copy
import pickle
import re
import time
from html.parser import HTMLParser

import pytest
import torch

import hierpart
from hierpart.page import Table
from hierpart.plan import Nested, Plan
from hierpart.report.details import Details, details_of, module_of, source_of, value
from hierpart.report.figures import count, figures
from hierpart.report.flops import FlopTable
from hierpart.report.html.markup import element, raw
from hierpart.report.report import Report
from tests.large_report import large_report
from tests.test_report import make_plan

VOID = {"meta", "input", "br", "col"}


class Page(HTMLParser):
    """A page read back: it fails where tags do not match, and keeps tables, ids and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.ids, self.links, self.addresses = [], [], [], [], []
        self.text, self.tags = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action", "srcset")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    def table(self, *header):
        """Return the rows below the header that starts with these names."""
        for rows in self.tables:
            if rows and tuple(rows[0][: len(header)]) == header:
                return rows[1:]
        raise AssertionError(f"no table starts with {header}")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.softmax(self.second(self.first(x).relu()), dim=-1)


class Choice(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: t.relu() @ t.mT, lambda t: t @ t.mT, (x,))


TAKES = {
    "backend_priority": ["mine"],
    "backend_support_map": {"mine": ["torch.ops.aten.linear", "torch.ops.aten.relu"]},
    "min_block_size": 1,
}


@pytest.fixture(scope="module")
def report():
    return hierpart.explain(Net(), (torch.randn(2, 4),), **TAKES)


@pytest.fixture(scope="module")
def nested():
    return hierpart.explain(Choice(), (torch.randn(2, 4),), **TAKES)


def test_the_page_is_one_file_without_network(report, tmp_path):
    path = tmp_path / "report.html"
    text = report.to_html(path, title="net")
    assert path.read_text(encoding="utf-8") == text
    page = Page(text)
    assert {a for a in page.addresses if not a.startswith("#")} == set()
    assert "url(" not in text
    assert "@import" not in text
    assert "fetch(" not in text
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_every_node_is_a_row_with_owner_answer_value_source_and_module(report):
    rows = Page(report.to_html()).table("#", "node", "op", "block", "runs on", "mine's answer")
    assert [row[1] for row in rows] == [n for b in report.plan for n in b.nodes]
    by_node = {row[1]: row for row in rows}
    softmax = by_node["softmax"]
    assert softmax[2:6] == ["aten.softmax.int", "1", "eager", "not listed"]
    linear = by_node["linear"]
    assert linear[4:6] == ["mine", "yes"]
    assert linear[6:9] == ["float32 2x8", "64 B", "128"]  # 2 * 2 * 4 * 8 operations
    assert re.fullmatch(r"tests/test_html\.py:\d+", linear[9])
    assert linear[10] == "first"


def test_the_summary_has_shares_of_ops_flops_and_bytes(report):
    text = report.to_html()
    rows = Page(text).table("backend", "blocks", "nodes", "compute ops", "share", "FLOPs")
    assert rows[0][:7] == ["mine", "1", "3", "3", "75.0 %", "256", "100.0 %"]
    assert rows[1][:7] == ["eager", "1", "1", "1", "25.0 %", "0", "0.0 %"]
    assert rows[0][7:9] == ["160 B", "83.3 %"]  # 64 + 64 + 32 of 192 bytes
    assert "2 blocks, the fewest possible with these owners (proved)" in text
    bare = Report(report.plan).to_html()  # nothing known but the plan
    assert Page(bare).table("backend", "blocks", "nodes", "compute ops", "share", "minimum")


def test_values_between_blocks_are_told(report):
    page = Page(report.to_html())
    crossing = report.plan.blocks[0].outputs[0]
    assert page.table("value", "dtype and shape", "bytes", "read by")[0] == [
        crossing, "float32 2x4", "32 B", "block 1",
    ]  # fmt: skip
    assert page.table("value", "dtype and shape", "bytes", "from")[0][3] == "block 0"


def test_branches_are_trees_and_their_nodes_are_in_the_table(nested):
    page = Page(nested.to_html())
    branches = [a for tag, a in page.tags if tag == "details" and a.get("class") == "branch"]
    assert len(branches) == len(nested.plan.nested) == 2
    rows = page.table("#", "node")
    inside = [row for row in rows if row[-1]]
    wanted = [f"cond: {n.branch}" for n in nested.plan.nested for _ in n.plan.owner]
    assert [row[-1] for row in inside] == wanted
    assert [int(row[0]) for row in rows] == list(range(len(rows)))


def test_names_and_reasons_are_escaped():
    plan = make_plan(["inductor", "eager"])
    evil = '<script>alert("&")</script>'
    text = plan.to_json().replace("n0_mul", "n0<b>").replace("by inductor rule", "x</td>&amp;")
    sick = Plan.from_json(text)
    page = Page(Report(sick, notes=(evil,)).to_html(title=evil))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "b" not in [tag for tag, _ in page.tags]
    rows = page.table("#", "node")
    assert "n0<b>" in [row[1] for row in rows]
    assert rows[0][5] == "not listed (x</td>&amp;)"
    assert page.text.count(evil) == 1
    assert f"hierpart: {evil}" in page.text


def test_elements_escape_text_and_attributes():
    made = element("p", "<&", element("b", 1), None, ["x", ["y"]], title='"<', hidden=True, id=None)
    assert made == '<p title="&quot;&lt;" hidden>&lt;&amp;<b>1</b>xy</p>'
    assert element("col", style="a") == '<col style="a">'
    with pytest.raises(ValueError, match="'</'"):
        raw("</style>")


@pytest.mark.parametrize(
    ("blocks", "is_dense", "opened"), [(3, False, 3), (20, False, 0), (300, True, 0)]
)
def test_few_blocks_are_open_and_many_are_rows(blocks, is_dense, opened):
    page = Page(large_report(blocks, 4 * blocks).to_html())
    boxes = [
        a for tag, a in page.tags if tag == "details" and a.get("class", "").startswith("block")
    ]
    assert len(boxes) == blocks
    assert sum("open" in box for box in boxes) == opened
    chains = [a["class"] for tag, a in page.tags if tag == "ol"]
    assert chains == ["chain dense" if is_dense else "chain"]
    assert sum(tag == "rect" for tag, _ in page.tags) == blocks


def test_failed_blocks_show_their_history():
    report = large_report(40, 200)
    page = Page(report.to_html())
    failed = [o for o in report.outcomes if o.error]
    assert failed
    assert page.text.count("RuntimeError: no engine\nand a long log") >= len(failed)
    assert page.text.count(" ran on eager") == len(failed)
    assert len(page.table("#", "planned")) == 40


def test_five_thousand_nodes_make_a_small_page_soon():
    report = large_report(300, 5000)
    started = time.process_time()
    text = report.to_html()
    spent = time.process_time() - started
    assert len(text.encode()) < 4 * 2**20  # about 550 bytes a node
    assert spent < 10  # a tenth of it on an idle machine
    assert len(Page(text).table("#", "node")) == 5000


def test_details_are_in_the_json_and_read_back(nested):
    import json

    data = json.loads(nested.to_json())["report"]["details"]
    assert Details.from_dict(data) == nested.details
    assert Plan.from_json(nested.to_json()) == nested.plan
    assert "details" not in json.loads(Report(nested.plan).to_json())["report"]


def test_the_graph_stays_with_its_process(report):
    assert copy.deepcopy(report).planned is report.planned is not None
    again = pickle.loads(pickle.dumps(report))
    assert again.planned is None
    assert again == report
    assert again.details == report.details


def test_figures_add_up_over_branches(nested):
    rows = figures(nested.plan, nested.details)
    parts = [nested.plan, *(n.plan for n in nested.plan.nested)]
    assert sum(f.nodes for f in rows) == sum(len(p.owner) for p in parts)
    assert sum(f.flops for f in rows) == 2 * (2 * 2 * 4 * 2)  # one product in each branch
    assert count(950) == "950"
    assert count(999.9) == "1 k"
    assert count(1_050_000) == "1.05 M"


class Products(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x, q):
        return self.conv(x).relu(), torch.einsum("bij,bkj->bik", q, q), q @ q.mT


def test_flops_are_those_of_torchs_counter():
    from torch.utils.flop_counter import FlopCounterMode

    model, args = Products(), (torch.randn(1, 3, 8, 8), torch.randn(2, 5, 6))
    with FlopCounterMode(display=False) as counter:
        model(*args)
    report = hierpart.explain(model, args, backend_priority=["eager"])
    told = [d.flops for d in report.details.nodes.values() if d.flops is not None]
    assert sum(told) == counter.get_total_flops() > 0
    relu = next(d for n, d in report.details.nodes.items() if n.startswith("relu"))
    assert relu.flops is None


def test_attention_counts_both_products_whatever_kernel_would_run():
    graph = torch.fx.Graph()
    q = graph.placeholder("q")
    q.meta["val"] = torch.empty(2, 5, 6)  # one head
    attention = torch.ops.aten.scaled_dot_product_attention.default
    assert FlopTable().of(graph.call_function(attention, (q, q, q))) == 2 * (2 * 2 * 5 * 5 * 6)


def test_symbolic_sizes_are_named_and_counted_by_their_hint():
    batch = torch.export.Dim("batch")
    report = hierpart.explain(
        Net(), (torch.randn(6, 4),), dynamic_shapes={"x": {0: batch}}, **TAKES
    )
    linear = report.details.nodes["linear"]
    assert re.fullmatch(r"s\d+x8", linear.value.shape)
    assert (linear.value.bytes, linear.flops) == (6 * 8 * 4, 2 * 6 * 4 * 8)


def test_an_op_that_cannot_be_tried_has_no_estimate():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3)
    wrong = graph.call_function(torch.ops.aten.mm.default, (x, x))  # shapes do not fit
    bare = graph.call_function(torch.ops.aten.mm.default, (wrong, x))
    assert FlopTable().of(wrong) is None
    assert FlopTable().of(bare) is None


def test_what_is_told_of_values_and_places():
    assert str(value(torch.empty(2, 0))) == "float32 2x0"
    assert str(value(torch.tensor(1.0))) == "float32 scalar"
    assert str(value((torch.empty(2), None, 3))) == "float32, None, int (2, -, -)"
    assert str(value(None)) == "None"
    node = torch.fx.Graph().placeholder("x")
    inside = torch.__file__
    node.meta["stack_trace"] = f'File "/a/b.py", line 3, in f\n  File "{inside}", line 9, in g'
    assert source_of(node) == "/a/b.py:3"
    node.meta["nn_module_stack"] = {"k": ("", "T"), "l": ("L['self'].body.0", "T")}
    assert module_of(node) == "body.0"
    assert (
        source_of(torch.fx.Graph().placeholder("x")),
        module_of(torch.fx.Graph().placeholder("x")),
    ) == ("", "")


def test_a_branch_that_two_ops_share_is_described_once(nested):
    result = nested.planned.result
    assert details_of(result) == nested.details
    twice = Nested("cond", "true_graph_0", make_plan(["inductor"]))
    plan = make_plan(["tensorrt"], nested=(twice, twice))
    page = Page(Report(plan).to_html())  # no details at all, two trees
    assert len(page.ids) == len(set(page.ids))


def test_tables_of_text_keep_all_of_a_cell():
    from hierpart.report.html.markup import table

    long = "x" * 500
    assert long in table(Table("t", ("a", ">b"), ((long, "1"),)))
