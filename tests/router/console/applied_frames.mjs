// Applies the frames that standard input has, one JSON object a line, and prints what is known then.

import { createInterface } from "node:readline";

const { applyFrame, copyOf, countsOf, emptyPicture, kindsOf } = await import(process.env.PICTURE);

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

const picture = emptyPicture();
const copies = [];
for await (const line of createInterface({ input: process.stdin })) {
  applyFrame(picture, JSON.parse(line));
  copies.push(copyOf(picture));
}
for (const { workers } of copies) {
  console.log(JSON.stringify([...workers].map(([number, worker]) => [number, shown(worker)])));
}
