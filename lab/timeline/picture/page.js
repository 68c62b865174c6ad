"use strict";
const form = document.querySelector(".filter");
const rows = [...document.querySelectorAll("tbody tr")];
const words = new Map(rows.map(r => [r, (r.className + " " + r.textContent).toLowerCase()]));
const filter = document.getElementById("filter");
const steps = document.getElementById("steps");
const differences = document.getElementById("differences");
const shown = document.getElementById("shown");
function apply() {
  const wanted = filter.value.toLowerCase().split(",").map(w => w.trim()).filter(w => w);
  let count = 0;
  for (const r of rows) {
    const fits = (wanted.length === 0 || wanted.some(w => words.get(r).includes(w)))
      && (steps.checked || !r.classList.contains("step"))
      && (!differences || !differences.checked || r.classList.contains("only") || r.classList.contains("slower"));
    r.hidden = !fits;
    if (fits && !r.classList.contains("pause")) count++;
  }
  shown.value = count + " events shown";
}
form.hidden = false;
form.addEventListener("input", apply);
form.addEventListener("submit", e => e.preventDefault());
apply();
