// Applies the frames that standard input has, one JSON object a line, and prints what is known then.
// On the way it asks a history for moments of the past, which must be as they were.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";

const { applyFrame, copyOf, countsOf, emptyPicture, kindsOf } = await import(
  `${process.env.LIVE}/picture.js`
);
const { History, SPAN_S } = await import(`${process.env.LIVE}/history.js`);
const SCHEDULER = "host:1";
const CLOCK_S = 1e9;

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
  return { sequences, pools, counts };
}

function checkMoments(history, pictures, numbers) {
  for (const number of numbers) {
    const { at, picture } = pictures[number];
    if (at < history.oldest || pictures[number + 1]?.at === at) continue;
    assert.deepEqual(history.picturesAt(at).get(SCHEDULER), picture, `frame ${number}`);
  }
}

const history = new History();
const picture = emptyPicture();
const pictures = [];
for await (const line of createInterface({ input: process.stdin })) {
  const frame = JSON.parse(line);
  applyFrame(picture, frame);
  history.add({ scheduler: SCHEDULER, frame }, CLOCK_S + picture.at / 1e9);
  pictures.push({ at: history.now, picture: copyOf(picture) });
  const last = pictures.length - 1;
  checkMoments(
    history,
    pictures,
    [last, last - 1, last - 7, (last * 7) % (last + 1)].filter((n) => n >= 0),
  );
}
const backwards = [...pictures.keys()].reverse();
checkMoments(history, pictures, backwards);
const other = History.from(structuredClone(history.dump()));
checkMoments(other, pictures, backwards);
const { now, entries, oldest } = history;
assert.equal(oldest <= Math.max(now - SPAN_S, pictures[0].at), true);
assert.equal(other.oldest, oldest);
const needless = entries.filter((one) => one.at < oldest);
assert.equal(needless.length <= 1, true, "what cannot be shown is kept");
for (const { workers } of pictures.map((one) => one.picture)) {
  console.log(JSON.stringify([...workers].map(([number, worker]) => [number, shown(worker)])));
}
