"use strict";
(() => {
  document.documentElement.classList.add("js");
  const table = document.getElementById("node-table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const byId = (id) => document.getElementById(id);
  const words = byId("filter-text"), owner = byId("filter-owner"), block = byId("filter-block");
  const refused = byId("filter-refused"), count = byId("filter-count");

  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      const is = (!owner.value || row.dataset.owner === owner.value)
        && (!block.value || row.dataset.block === block.value)
        && (!refused.checked || row.dataset.refused === "1")
        && wanted.every((word) => texts[i].includes(word));
      if (row.hidden === is) row.hidden = !is;
      shown += is;
    });
    count.textContent = shown === rows.length ? `${rows.length} nodes` : `${shown} of ${rows.length} nodes`;
  };
  let timer = 0;
  words.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(filter, 120); });
  [owner, block, refused].forEach((input) => input.addEventListener("change", filter));

  const sort = (head) => {
    const column = head.cellIndex, numbers = head.dataset.kind === "number";
    const was = head.getAttribute("aria-sort");  // numbers start with the largest
    const up = numbers ? was === "descending" : was !== "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = rows.map((row, i) => {
      const cell = row.cells[column], given = cell.dataset.v ?? cell.textContent;
      return [numbers ? (given === "" ? -Infinity : Number(given)) : given, i, row];
    });
    const compare = numbers ? (a, b) => a - b : (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    keyed.sort((a, b) => (up ? 1 : -1) * compare(a[0], b[0]) || a[1] - b[1]);
    const sorted = document.createDocumentFragment();
    for (const [, , row] of keyed) sorted.append(row);
    body.append(sorted);
  };
  for (const head of table.tHead.rows[0].cells) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(head); }
    });
  }

  for (const button of document.querySelectorAll("[data-show-block]")) {
    button.addEventListener("click", () => {
      words.value = ""; owner.value = ""; refused.checked = false;
      block.value = button.dataset.showBlock;
      filter();
      byId("nodes").scrollIntoView();
    });
  }
  const open = () => {
    const aim = location.hash && document.getElementById(location.hash.slice(1));
    for (let at = aim; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (aim) aim.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
  filter();
})();
