/**
 * What frames of `Watch` say of a scheduler. No DOM.
 *
 * A picture never changes: a frame makes another one, which shares with it what is the same, so that
 * those of the last minute can all be kept. Numbers of blocks index the pools. A table has a row for
 * each `blockSize` tokens, with an entry for each of the worker's groups of layers, which may be NO_BLOCK.
 */

import { counted, secondsOf } from "../lib/format.js";

const STATES = ["", "waiting", "running", "swapped", "ended", "loading"];
/** Kinds of blocks, in the order of legends. Further kinds of owners fit in as further rows. */
export const KINDS = ["free", "cached", "used", "shared", "swapped", "reserved", "in transfer"];
const [, CACHED, USED, SHARED, SWAPPED, RESERVED, IN_TRANSFER] = KINDS.keys();
/** What holds blocks that move nowhere. */
const RESERVING = ["HOLD_KIND_PLAN", "HOLD_KIND_PREFIX", "HOLD_KIND_AUDIT"];
const NO_BLOCK = -1;

export const EMPTY = { at: 0, lost: "", numWaiting: 0, starting: [], workers: new Map() };

/** Returns the picture after a frame. */
export function afterFrame(picture, frame) {
  const before = frame.isFull ? EMPTY : picture;
  const { numWaiting = before.numWaiting, numWrong = before.numWrong, starting } = frame;
  const workers = new Map(before.workers);
  for (const number of frame.leftWorkers ?? []) workers.delete(number);
  for (const change of frame.workers ?? []) {
    const worker = workers.get(change.number) ?? newWorker(change);
    workers.set(change.number, workerAfter(worker, change));
  }
  const phases = starting ? (starting.phases ?? []) : before.starting;
  return { at: secondsOf(frame.atNs), lost: "", numWaiting, numWrong, starting: phases, workers };
}

function newWorker({ number, description: { numGpuBlocks = 0, numCpuBlocks = 0 } }) {
  const pool = (size) => ({ cached: new Uint8Array(size), held: new Map() });
  return { number, sequences: new Map(), gpu: pool(numGpuBlocks), cpu: pool(numCpuBlocks) };
}

function workerAfter(worker, change) {
  const { description = worker.description } = change;
  const [gpu, cpu] = [poolAfter(worker.gpu, change.gpu), poolAfter(worker.cpu, change.cpu)];
  return { ...worker, description, gpu, cpu, sequences: sequencesAfter(worker.sequences, change) };
}

function sequencesAfter(before, change) {
  const sequences = new Map(before);
  for (const id of int64s(change.goneSeqIds)) sequences.delete(id);
  for (const { seqId, ...one } of change.newSequences ?? []) {
    const arrivedS = secondsOf(one.arrivedAtNs);
    const requestNumber = Number(one.requestNumber);
    sequences.set(Number(seqId), { ...one, arrivedS, requestNumber, table: [] });
  }
  const states = bytesOf(change.states);
  const [numTokens, numComputedTokens] = [change.numTokens, change.numComputedTokens].map(int32s);
  int64s(change.seqIds).forEach((id, i) => {
    const progress = { numTokens: numTokens[i], numComputedTokens: numComputedTokens[i] };
    sequences.set(id, { ...sequences.get(id), state: STATES[states[i]], ...progress });
  });
  const { tableNumKept, tableNumBlocks, tableBlocks } = change;
  const [kept, counts, blocks] = [tableNumKept, tableNumBlocks, tableBlocks].map(int32s);
  let start = 0;
  int64s(change.tableSeqIds).forEach((id, i) => {
    const sequence = sequences.get(id);
    const added = blocks.slice(start, (start += counts[i]));
    sequences.set(id, { ...sequence, table: sequence.table.slice(0, kept[i]).concat(added) });
  });
  return sequences;
}

function poolAfter(pool, change) {
  if (!change) return pool;
  const [cached, held] = [pool.cached.slice(), new Map(pool.held)];
  for (const block of int32s(change.cached)) cached[block] = 1;
  for (const block of int32s(change.uncached)) cached[block] = 0;
  for (const { kind, blocks } of change.held ?? []) {
    if (blocks) held.set(kind, int32s(blocks));
    else held.delete(kind);
  }
  return { cached, held };
}

/** Returns the kind of each block of a pool, "gpu" or "cpu", as indices of KINDS. */
export function kindsOf(worker, name) {
  const { cached, held } = worker[name];
  const kinds = cached.map((is) => is * CACHED);
  const first = name === "cpu" ? SWAPPED : USED;
  for (const sequence of worker.sequences.values()) {
    if (poolOf(sequence) !== name) continue;
    for (const block of sequence.table) {
      if (block !== NO_BLOCK) kinds[block] = kinds[block] >= USED ? SHARED : first;
    }
  }
  for (const [kind, blocks] of held) {
    const isReserving = RESERVING.includes(kind);
    for (const block of blocks) {
      if (!isReserving) kinds[block] = IN_TRANSFER;
      else if (kinds[block] < USED) kinds[block] = RESERVED;
    }
  }
  return kinds;
}

/** Returns how many blocks there are of each of KINDS. */
export function countsOf(kinds) {
  const counts = KINDS.map(() => 0);
  for (const kind of kinds) counts[kind]++;
  return counts;
}

/** Returns requests of a worker by number: state, tokens and sequences. */
export function requestsOf(worker) {
  const requests = new Map();
  for (const sequence of worker.sequences.values()) {
    const { requestNumber, state, numTokens, numPromptTokens } = sequence;
    const known = requests.get(requestNumber) ?? { ...sequence, numOutput: 0, sequences: [] };
    known.numOutput += Math.max(0, numTokens - numPromptTokens);
    if (state !== "ended") known.state = state;
    known.sequences.push(sequence);
    requests.set(requestNumber, known);
  }
  return requests;
}

/** Returns the blocks of a request in a pool, each with the index of its entry in a table. */
export function blocksOf({ sequences }, name) {
  const blocks = new Map();
  for (const { table } of sequences.filter((one) => poolOf(one) === name)) {
    table.forEach((block, index) => block !== NO_BLOCK && blocks.set(block, index));
  }
  return blocks;
}

/** Says for which tokens the block of an entry is, and of which group of layers if there are several. */
export function contentOf({ blockSize, groups = [{ kind: "full" }] }, index) {
  const end = (Math.floor(index / groups.length) + 1) * blockSize;
  const tokens = `tokens ${end - blockSize + 1} to ${end}`;
  return groups.length > 1 ? `${tokens}, ${nameOf(groups[index % groups.length])}` : tokens;
}

/** Says which groups of layers there are, those that are alike once: "full, 2 × window of 512". */
export function groupsText(groups) {
  const counts = new Map();
  for (const name of groups.map(nameOf)) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${count} × ${name}` : name)).join(", ");
}

function nameOf({ kind, window, stateBlocks, layers = [] }) {
  const named = { window: `window of ${window}`, state: `states of ${stateBlocks} blocks` };
  const name = named[kind] ?? kind;
  return layers.length ? `${name} (${counted(layers.length, "layer")})` : name;
}

function poolOf({ state }) {
  return state === "swapped" ? "cpu" : "gpu";
}

function bytesOf(text = "") {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Reads a column of int32. */
export function int32s(text) {
  return Array.from(new Int32Array(bytesOf(text).buffer));
}

/** Reads a column of int64: ids and nanoseconds, which a number holds exactly. */
export function int64s(text) {
  return Array.from(new BigInt64Array(bytesOf(text).buffer), Number);
}
