"""The page's looks and its script: one set of colours for light, one for dark, as the reader's system asks."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --ink: #1c2026; --soft: #5b6470; --line: #d7dbe0;
  --warn: #b3430c; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171b; --card: #1d2127; --ink: #e6e9ed; --soft: #a3adb8; --line: #363d46; --warn: #ff9a66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px 20px 60px; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 4px; } p { margin: 4px 0 12px; }
.soft, figcaption { color: var(--soft); } .expired { color: var(--warn); font-weight: 600; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; }
.facts b { display: block; font-size: 22px; }
figure { margin: 0; overflow-x: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
td.number, th.number { text-align: right; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 6px 0;
  padding: 6px 12px; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { margin: 8px 0 4px; font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
"""

# Draws every picture into the figure of its name, and again when the reader's system turns light or dark.
SCRIPT = """
const specs = JSON.parse(document.getElementById("pictures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function theme() {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map(name => style.getPropertyValue(name).trim());
  const text = { labelColor: soft, titleColor: soft, labelFontSize: 12, titleFontSize: 12 };
  return { background: "transparent", font: "system-ui, sans-serif", view: { stroke: line },
    axis: { ...text, gridColor: line, domainColor: line, tickColor: line, gridOpacity: 0.6 },
    legend: text, header: { ...text, labelColor: ink, labelFontSize: 13, labelFontWeight: "bold" },
    title: { color: ink } };
}
async function draw() {
  const config = theme();
  for (const [name, spec] of Object.entries(specs))
    await vegaEmbed("#" + name, { ...spec, config }, { actions: false, renderer: "svg", mode: "vega-lite",
      tooltip: { theme: dark.matches ? "dark" : "light" } });
  document.body.dataset.drawn = Object.keys(specs).length;
}
dark.addEventListener("change", draw);
draw();
"""
