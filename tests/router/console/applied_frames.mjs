// Applies the frames that standard input has, one JSON object a line, and prints what is known then.
// On the way it asks a history for moments of the past, which must be as they were.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";

const { EMPTY, afterFrame, blocksOf, contentOf, countsOf, groupsText, kindsOf } = await import(
  `${process.env.LIVE}/picture.js`
);
const { History, SPAN_S } = await import(`${process.env.LIVE}/history.js`);
const SCHEDULER = "host:1";
const CLOCK_S = 1e9;
const SPACING_S = 0.05;

function shown(worker) {
  const sequences = [...worker.sequences].map(([id, one]) => [
    id,
    one.state.toUpperCase(),
    one.requestNumber,
    one.numTokens,
    one.numComputedTokens,
    one.table,
  ]);
  const pools = [worker.gpu, worker.cpu].map(({ cached, held }) => ({
    cached: [...cached].flatMap((is, block) => (is ? [block] : [])),
    held: Object.fromEntries(held),
  }));
  const counts = ["gpu", "cpu"].map((name) => countsOf(kindsOf(worker, name)));
  const { description } = worker;
  const contents = [...worker.sequences].map(([id, { ...one }]) => {
    const blocks = ["gpu", "cpu"].flatMap((name) => [...blocksOf({ sequences: [one] }, name)]);
    return [id, blocks.map(([block, index]) => [block, contentOf(description, index)])];
  });
  return { sequences, pools, counts, contents, groups: groupsText(description.groups) };
}

const history = new History();
const pictures = [];
let picture = EMPTY;
for await (const line of createInterface({ input: process.stdin })) {
  const frame = JSON.parse(line);
  picture = afterFrame(picture, frame);
  history.add({ scheduler: SCHEDULER, frame }, CLOCK_S + picture.at);
  pictures.push({ at: history.now, picture });
}
const other = new History();
other.goOnFrom(structuredClone(history.known));
assert.deepEqual(other.picturesAt(history.now).get(SCHEDULER), picture);
for (const [number, { at, picture }] of pictures.entries()) {
  if (at < history.oldest || pictures[number + 1]?.at === at) continue;
  const found = history.picturesAt(at).get(SCHEDULER);
  assert.ok(Math.abs(found.at - picture.at) <= SPACING_S, `frame ${number}`);
  assert.deepEqual(found, pictures.find((one) => one.picture.at === found.at).picture);
}
assert.ok(history.oldest >= history.now - SPAN_S - 1, "what cannot be shown is kept");
for (const { workers } of pictures.map((one) => one.picture)) {
  console.log(JSON.stringify([...workers].map(([number, worker]) => [number, shown(worker)])));
}
