/** Requests on the workers, the oldest first, with links to what happened to each. */

import { duration, number } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { counted } from "./figures.js";
import { requestsOf } from "./picture.js";

const NUM_SHOWN = 10;
const COLUMNS = ["request", "state", "worker", "prompt", "output", "blocks", "since"];

/** Props: `panels` of scheduler and worker, `nowOf(scheduler)`, `whyHash(scheduler, number)`. */
export function Requests({ panels, nowOf, whyHash }) {
  const [isWhole, setWhole] = useState(false);
  const rows = panels
    .flatMap(({ scheduler, worker }) =>
      [...requestsOf(worker)].map(([id, one]) => ({ id, scheduler, worker, ...one })),
    )
    .sort((one, other) => one.id - other.id);
  const shown = isWhole ? rows : rows.slice(0, NUM_SHOWN);
  return html`<section class="live-requests" aria-label="Requests">
    <h2>Requests <span class="live-muted">${counted(rows.length, "request")} on workers</span></h2>
    ${
      rows.length > 0 &&
      html`<div class="live-scroll">
        <table class="live-table">
          <thead>
            <tr>
              ${COLUMNS.map((one) => html`<th>${one}</th>`)}
            </tr>
          </thead>
          <tbody>
            ${shown.map((row) => html`<${Row} ...${row} ...${{ nowOf, whyHash }} />`)}
          </tbody>
        </table>
      </div>`
    }
    ${
      rows.length > NUM_SHOWN &&
      html`<button onClick=${() => setWhole(!isWhole)}>
        ${isWhole ? "Show the oldest" : `Show all ${rows.length}`}
      </button>`
    }
  </section>`;
}

function Row({ id, scheduler, worker, nowOf, whyHash, ...one }) {
  const age = Math.max(0, nowOf(scheduler) - Number(one.arrivedAtNs ?? 0) / 1e9);
  return html`<tr>
    <td><a href=${whyHash(scheduler, id)}>${id}</a></td>
    <td>${one.state}</td>
    <td>${worker.description.address}</td>
    <td>${number(one.numPromptTokens)}</td>
    <td>${number(one.numOutput)} of ${number(one.maxTokens)}</td>
    <td>${number(one.blocks)}</td>
    <td>${duration(age)}</td>
  </tr>`;
}
