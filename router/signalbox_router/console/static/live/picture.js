/**
 * What frames of `Watch` say of a scheduler. No DOM.
 *
 * A picture is plain data: sequences and columns are replaced, never changed, so that a copy is
 * cheap. Numbers of blocks index the pools.
 */

const STATES = ["", "waiting", "running", "swapped", "ended", "loading"];
/** Kinds of blocks, in the order of legends. Further kinds of owners fit in as further rows. */
export const KINDS = ["free", "cached", "used", "shared", "swapped", "reserved", "in transfer"];
const [, CACHED, USED, SHARED, SWAPPED, RESERVED, IN_TRANSFER] = KINDS.keys();
const KIND_OF_HOLD = {
  HOLD_KIND_PLAN: RESERVED,
  HOLD_KIND_PREFIX: RESERVED,
  HOLD_KIND_FETCH: IN_TRANSFER,
  HOLD_KIND_STORE: IN_TRANSFER,
  HOLD_KIND_EXPORT: IN_TRANSFER,
  HOLD_KIND_MIGRATION: IN_TRANSFER,
};

export function emptyPicture() {
  return { at: 0, lost: "", numWaiting: 0, starting: [], workers: new Map() };
}

/** Returns a picture that stays as it is while the other is changed. */
export function copyOf(picture) {
  return { ...picture, workers: new Map([...picture.workers].map(([n, one]) => [n, copied(one)])) };
}

function copied(worker) {
  const pools = [worker.gpu, worker.cpu].map(({ cached, held }) => ({
    cached: cached.slice(),
    held: new Map(held),
  }));
  return { ...worker, sequences: new Map(worker.sequences), gpu: pools[0], cpu: pools[1] };
}

/** Changes a picture as a frame says. */
export function applyFrame(picture, frame) {
  if (frame.isFull) Object.assign(picture, emptyPicture());
  picture.lost = "";
  picture.at = Number(frame.atNs);
  picture.numWaiting = frame.numWaiting ?? picture.numWaiting;
  if (frame.starting) picture.starting = frame.starting.phases ?? [];
  for (const number of frame.leftWorkers ?? []) picture.workers.delete(number);
  for (const change of frame.workers ?? []) {
    if (!picture.workers.has(change.number)) {
      picture.workers.set(change.number, newWorker(change.number, change.description));
    }
    applyToWorker(picture.workers.get(change.number), change);
  }
}

function newWorker(number, { numGpuBlocks = 0, numCpuBlocks = 0 }) {
  const pool = (size) => ({ cached: new Uint8Array(size), held: new Map() });
  return { number, sequences: new Map(), gpu: pool(numGpuBlocks), cpu: pool(numCpuBlocks) };
}

function applyToWorker(worker, change) {
  if (change.description) worker.description = change.description;
  const { sequences } = worker;
  for (const id of int64s(change.goneSeqIds)) sequences.delete(id);
  for (const { seqId, ...one } of change.newSequences ?? []) {
    const arrivedS = Number(one.arrivedAtNs ?? 0) / 1e9;
    const requestNumber = Number(one.requestNumber);
    sequences.set(Number(seqId), { ...one, arrivedS, requestNumber, table: [] });
  }
  const states = bytesOf(change.states);
  const [numTokens, numComputedTokens] = [change.numTokens, change.numComputedTokens].map(int32s);
  int64s(change.seqIds).forEach((id, i) => {
    const progress = { numTokens: numTokens[i], numComputedTokens: numComputedTokens[i] };
    sequences.set(id, { ...sequences.get(id), state: STATES[states[i]], ...progress });
  });
  applyTables(sequences, change);
  for (const name of ["gpu", "cpu"]) if (change[name]) applyToPool(worker[name], change[name]);
}

function applyTables(sequences, change) {
  const [kept, counts, blocks] = [
    change.tableNumKept,
    change.tableNumBlocks,
    change.tableBlocks,
  ].map(int32s);
  let start = 0;
  int64s(change.tableSeqIds).forEach((id, i) => {
    const sequence = sequences.get(id);
    const added = blocks.slice(start, (start += counts[i]));
    sequences.set(id, { ...sequence, table: [...sequence.table.slice(0, kept[i]), ...added] });
  });
}

function applyToPool(pool, change) {
  for (const block of int32s(change.cached)) pool.cached[block] = 1;
  for (const block of int32s(change.uncached)) pool.cached[block] = 0;
  for (const { kind, blocks } of change.held ?? []) {
    if (blocks) pool.held.set(kind, int32s(blocks));
    else pool.held.delete(kind);
  }
}

/** Returns the kind of each block of a pool, "gpu" or "cpu", as indices of KINDS. */
export function kindsOf(worker, name) {
  const { cached, held } = worker[name];
  const kinds = new Uint8Array(cached.length);
  cached.forEach((is, block) => is && (kinds[block] = CACHED));
  for (const { state, table } of worker.sequences.values()) {
    if ((state === "swapped") !== (name === "cpu")) continue;
    const first = name === "cpu" ? SWAPPED : USED;
    for (const block of table) kinds[block] = kinds[block] >= USED ? SHARED : first;
  }
  for (const [kind, blocks] of held) {
    for (const block of blocks) {
      if (kinds[block] < USED || KIND_OF_HOLD[kind] === IN_TRANSFER) {
        kinds[block] = KIND_OF_HOLD[kind];
      }
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

/** Returns requests of a worker by number: their sequences, state, tokens, and blocks in a pool. */
export function requestsOf(worker) {
  const requests = new Map();
  for (const { requestNumber, ...one } of worker.sequences.values()) {
    const known = requests.get(requestNumber) ?? { ...one, numOutput: 0, gpu: [], cpu: [] };
    known.numOutput += Math.max(0, one.numTokens - one.numPromptTokens);
    known[one.state === "swapped" ? "cpu" : "gpu"].push(...one.table);
    if (one.state !== "ended") known.state = one.state;
    requests.set(requestNumber, known);
  }
  for (const one of requests.values()) one.blocks = new Set([...one.gpu, ...one.cpu]).size;
  return requests;
}

function bytesOf(text) {
  const binary = atob(text ?? "");
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Reads a column of int32. */
export function int32s(text) {
  return Array.from(new Int32Array(bytesOf(text).buffer));
}

/** Reads a column of int64: ids and nanoseconds, which a number holds exactly. */
export function int64s(text) {
  return Array.from(new BigInt64Array(bytesOf(text).buffer), Number);
}
