/** Requests on the workers, the oldest first, with links to what happened to each. */

import { counted, duration, number } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { blocksOf } from "./picture.js";

const NUM_SHOWN = 10;
const COLUMNS = ["request", "state", "worker", "prompt", "output", "blocks", "since"];

/** Props: `panels` of workers, `whyHash(scheduler, number)`. */
export function Requests({ panels, whyHash }) {
  const [isWhole, setWhole] = useState(false);
  const rows = panels
    .flatMap((panel) => [...panel.requests].map(([id, one]) => ({ id, one, ...panel })))
    .sort((one, other) => one.id - other.id);
  const more = isWhole ? "Show the oldest" : `Show all ${rows.length}`;
  return html`<section class="panel" aria-label="Requests">
    <h2>Requests <span class="muted">${counted(rows.length, "request")} on workers</span></h2>
    <table class="table" hidden=${!rows.length}>
      <thead>
        <tr>
          ${COLUMNS.map((one) => html`<th>${one}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.slice(0, isWhole ? rows.length : NUM_SHOWN).map(
          (row) =>
            html`<tr>
              <td><a href=${whyHash(row.scheduler, row.id)}>${row.id}</a></td>
              ${textsOf(row).map((text) => html`<td>${text}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
    ${rows.length > NUM_SHOWN && html`<button onClick=${() => setWhole(!isWhole)}>${more}</button>`}
  </section>`;
}

function textsOf({ one, worker, now }) {
  const age = duration(Math.max(0, now - one.arrivedS));
  const output = `${number(one.numOutput)} of ${number(one.maxTokens)}`;
  const numBlocks = blocksOf(one, "gpu").size + blocksOf(one, "cpu").size;
  const { address } = worker.description;
  return [one.state, address, number(one.numPromptTokens), output, number(numBlocks), age];
}
