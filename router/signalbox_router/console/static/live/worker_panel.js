/** One worker: its blocks, what moves among its tiers, and its steps. */

import { counted, number } from "../lib/format.js";
import { html } from "../lib/html.js";
import { BlockMap } from "./block_map.js";
import { movesOf, stepsBetween } from "./figures.js";
import { groupsText } from "./picture.js";
import { Timeline } from "./timeline.js";

const ROLES = { prefill: "computes prompts", decode: "decodes" };
const STORES = { disk: "a disk", shared: "a shared store", memory: "a simulated store" };
/** From where blocks go to where, by what steps count. */
const MOVES = {
  blocks_swapped_out: "device → CPU",
  blocks_swapped_in: "CPU → device",
  blocks_copied: "device → device",
  blocks_fetched: "store or worker → CPU",
  blocks_stored: "CPU → store",
  blocks_exported: "CPU → worker",
};
const MOVES_S = 5;

/** Props: `history`, `worker` of a `scheduler`, its `requests`, `now` by its clock, `span` of steps, `at`. */
export function WorkerPanel({
  history,
  scheduler,
  worker,
  requests,
  now,
  span,
  at,
  onMove,
  onWhy,
}) {
  const { description } = worker;
  const { address, isDraining, numCpuBlocks, ranks } = description;
  const name = `${scheduler} ${worker.number}`;
  const steps = stepsBetween(history, name, span.from, span.to);
  const pool = { worker, requests, now, onWhy };
  return html`<section class="panel" aria-label=${`Worker ${address}`}>
    <header class="live-row">
      <h2>Worker ${address}</h2>
      ${isDraining && html`<b class="badge">drains</b>`}
      <span class="muted">${factsOf(description, requests, scheduler)}</span>
    </header>
    <div class="live-halves">
      <div>
        <${BlockMap} ...${pool} name="gpu" title="Device" />
        ${numCpuBlocks > 0 && html`<${BlockMap} ...${pool} name="cpu" title="CPU" />`}
      </div>
      <div>
        <h3>Steps <span class="muted">${counted(steps.length, "step")}</span></h3>
        <${Timeline} ...${{ steps, ...span, at, onMove }} />
        <${Moves} steps=${stepsBetween(history, name, at - MOVES_S, at)} />
        <${Ranks} ranks=${ranks} />
      </div>
    </div>
  </section>`;
}

function factsOf({ role, blockSize, groups = [], store }, requests, scheduler) {
  const states = [...requests.values()].map((one) => one.state);
  const facts = [`${counted(blockSize, "token")} a block`];
  for (const state of ["running", "swapped", "loading"]) {
    const count = states.filter((one) => one === state).length;
    if (count) facts.unshift(`${number(count)} ${state}`);
  }
  if (groups.length > 1 || groups[0]?.window) facts.push(groupsText(groups));
  if (ROLES[role]) facts.push(ROLES[role]);
  if (store) facts.push(`keeps blocks on ${STORES[store] ?? store}`);
  return [...facts, `of scheduler ${scheduler}`].join(" · ");
}

/** Blocks that moved between tiers in the last seconds. */
function Moves({ steps }) {
  const rows = Object.entries(movesOf(steps));
  if (!rows.length) return html`<p class="muted">No block moves between tiers.</p>`;
  return html`<ul class="live-row">
    ${rows.map(
      ([name, count]) =>
        html`<li>
          ${MOVES[name] ?? name.replaceAll("_", " ")} <b>${number(count / MOVES_S)} blocks/s</b>
        </li>`,
    )}
  </ul>`;
}

/** The ranks of a worker that has several, by pipeline stage. */
function Ranks({ ranks = [] }) {
  return ranks.map(({ stage = 0, rank = 0, firstLayer = 0, numLayers = 0, host, address }) => {
    const layers = `layers ${firstLayer} to ${firstLayer + numLayers - 1}`;
    const parts = [`stage ${stage}`, `rank ${rank}`, ...(numLayers ? [layers] : [])];
    return html`<p>${[...parts, host || address || "simulated"].join(" · ")}</p>`;
  });
}
