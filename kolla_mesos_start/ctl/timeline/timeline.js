"use strict";
// Draws who waited for whom, and follows it: by clicks, by the arrow keys, and through the links of the table.
const all = (query) => [...document.querySelectorAll(query)];
const lanes = all(".lane"), links = all("path"), svg = document.querySelector("svg");
const bars = new Map(all(".bar").map((bar) => [bar.dataset.steps, bar]));
const buttons = (lane) => lane ? [...lane.querySelectorAll("button")] : [];

// A link goes from the end of a step, down or up to the lane of one that waited for it, and on to its begin.
function draw() {
  const shown = lanes.filter((lane) => !lane.hidden);
  const rows = new Map(shown.map((lane, row) => [lane, row + 0.5]));
  svg.setAttribute("viewBox", `0 0 1000 ${shown.length || 1}`);
  svg.style.height = `calc(${shown.length} * var(--lane))`;
  for (const link of links) {
    const { from, to, begin, end } = link.dataset;
    const [first, last] = [from, to].map((step) => rows.get(bars.get(step).closest(".lane")));
    link.setAttribute("d", first && last ? `M${begin} ${first} V${last} H${end}` : "");
  }
  enter(buttons(shown[0])[0]);
}

// The chart is one stop for the tabulator key; the arrow keys go on from there.
function enter(button) {
  all('.lane button[tabindex="0"]').forEach((each) => { each.tabIndex = -1; });
  if (button) button.tabIndex = 0;
}

function choose(button) {
  const steps = new Set(button.dataset.steps.split(" "));
  all(".chosen, .linked").forEach((each) => each.classList.remove("chosen", "linked"));
  for (const link of links) {
    const { from, to } = link.dataset;
    if (!steps.has(from) && !steps.has(to)) continue;
    link.classList.add("chosen");
    svg.append(link); // above all others
    bars.get(from).classList.add("linked");
    bars.get(to).classList.add("linked");
  }
  button.classList.add("chosen");
  all(".bar, tbody tr").filter((each) => steps.has(each.dataset.steps)).forEach((each) => each.classList.add("chosen"));
  document.querySelector("#said").textContent = button.title;
  enter(button);
}

function move(event) {
  const shown = lanes.filter((lane) => !lane.hidden);
  const row = shown.indexOf(event.target.closest(".lane"));
  const own = buttons(shown[row]), column = own.indexOf(event.target);
  const beside = (lane) => buttons(lane)[Math.min(column, buttons(lane).length - 1)];
  const target = {
    ArrowLeft: () => own[column - 1],
    ArrowRight: () => own[column + 1],
    ArrowUp: () => beside(shown[row - 1]),
    ArrowDown: () => beside(shown[row + 1]),
  }[event.key]?.();
  if (!target) return;
  event.preventDefault();
  target.focus();
  choose(target);
}

function show(kind) {
  all(".lane, tbody tr").forEach((each) => { each.hidden = kind !== "all" && !each.classList.contains(kind); });
  draw();
}

// A link of the table, or one that was sent to somebody: start.html#step-7.
function follow() {
  const bar = bars.get(location.hash.replace("#step-", ""));
  if (!bar) return;
  if (bar.closest(".lane").hidden) document.querySelector('input[value="all"]').click();
  bar.focus();
  choose(bar);
}

all(".lane button").forEach((each) => each.addEventListener("click", () => choose(each)));
all("input").forEach((each) => each.addEventListener("change", () => show(each.value)));
document.querySelector("#chart").addEventListener("keydown", move);
addEventListener("hashchange", follow);
show(document.querySelector("input:checked").value);
follow();
