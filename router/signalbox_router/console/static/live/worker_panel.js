/** One worker: its blocks, what moves among its tiers, and its steps. */

import { number } from "../lib/format.js";
import { html } from "../lib/html.js";
import { BlockMap } from "./block_map.js";
import { counted, movesOf, stepsBetween } from "./figures.js";
import { Moves, Timeline } from "./timeline.js";

const ROLES = { prefill: "computes prompts", decode: "decodes" };
const STORES = { disk: "a disk", shared: "a shared store", memory: "a simulated store" };
const MOVES_S = 5;

export function WorkerPanel({ history, scheduler, worker, requests, now, span, at, ...rest }) {
  const { isOneOfMany, onMove, onWhy } = rest;
  const { description } = worker;
  const name = `${scheduler} ${worker.number}`;
  const steps = stepsBetween(history.steps, name, span.from, span.to);
  const moves = movesOf(stepsBetween(history.steps, name, at - MOVES_S, at));
  const pool = { worker, requests, now, onWhy };
  return html`<section class="live-worker" aria-label=${`Worker ${description.address}`}>
    <header>
      <h2>Worker ${description.address}</h2>
      ${description.isDraining && html`<b class="live-badge">drains</b>`}
      <span class="live-muted">${factsOf(description, requests, isOneOfMany && scheduler)}</span>
    </header>
    <div class="live-halves">
      <div>
        <${BlockMap} ...${pool} name="gpu" title="Device" />
        ${description.numCpuBlocks > 0 && html`<${BlockMap} ...${pool} name="cpu" title="CPU" />`}
      </div>
      <div>
        <h3>Steps <span class="live-muted">${counted(steps.length, "step")}</span></h3>
        <${Timeline} steps=${steps} from=${span.from} to=${span.to} at=${at} onMove=${onMove} />
        <${Moves} moves=${moves} seconds=${MOVES_S} />
        <${Ranks} ranks=${description.ranks} />
      </div>
    </div>
  </section>`;
}

function factsOf({ role, blockSize, store }, requests, scheduler) {
  const states = [...requests.values()].map((one) => one.state);
  const facts = [`${counted(blockSize, "token")} a block`];
  for (const state of ["running", "swapped", "loading"]) {
    const count = states.filter((one) => one === state).length;
    if (count) facts.unshift(`${number(count)} ${state}`);
  }
  if (ROLES[role]) facts.push(ROLES[role]);
  if (store) facts.push(`keeps blocks on ${STORES[store] ?? store}`);
  if (scheduler) facts.push(`of scheduler ${scheduler}`);
  return facts.join(" · ");
}

/** The ranks of a worker that has several, by pipeline stage. */
function Ranks({ ranks = [] }) {
  return ranks.map(({ stage = 0, rank = 0, firstLayer = 0, numLayers = 0, host, address }) => {
    const layers = `layers ${firstLayer} to ${firstLayer + numLayers - 1}`;
    const parts = [`stage ${stage}`, `rank ${rank}`, ...(numLayers ? [layers] : [])];
    return html`<p>${[...parts, host || address || "simulated"].join(" · ")}</p>`;
  });
}
