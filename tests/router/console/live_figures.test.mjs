// Figures of Live's charts, from messages of Watch. LIVE is the folder of the view's modules.

import assert from "node:assert/strict";
import { test } from "node:test";

const { History } = await import(`${process.env.LIVE}/history.js`);
const { quantile, seriesOf, stepsBetween, wordsOf } = await import(
  `${process.env.LIVE}/figures.js`
);

const START_S = 1e9;
const base64 = (numbers, Column) => Buffer.from(new Column(numbers).buffer).toString("base64");
const int64s = (numbers) => base64(numbers.map(BigInt), BigInt64Array);

function frameAt(seconds, { steps, numOmittedSteps, ...rest } = {}) {
  const worker = { number: 1, steps, numOmittedSteps };
  if (rest.isFull) worker.description = { address: "w:1", blockSize: 16, numGpuBlocks: 4 };
  return { scheduler: "s:1", frame: { atNs: `${seconds * 1e9}`, workers: [worker], ...rest } };
}

function stepAt(seconds, fields) {
  return { stepId: "1", answeredAtNs: `${seconds * 1e9}`, durationNs: "20000000", ...fields };
}

function historyOf(...messages) {
  const history = new History();
  for (const message of messages) {
    history.add(message, START_S + Number(message.frame?.atNs ?? 0) / 1e9);
  }
  return history;
}

/** Returns the row of the charts that has a time. */
function rowAt(history, seconds) {
  return seriesOf(history).find(({ at }) => at === START_S + seconds);
}

const full = frameAt(100, { isFull: true, numWaiting: 3 });

test("a figure is that of its half second, and nothing is said of times without frames", () => {
  const prompt = stepAt(100.6, {
    numTokens: 70,
    prefillNumTokens: base64([70], Int32Array),
    firstTokenNs: int64s([2e9, 4e9]),
  });
  const decode = stepAt(100.7, { numTokens: 8, numDecodes: 8 });
  const history = historyOf(full, frameAt(100.8, { steps: [prompt, decode] }), frameAt(101.2));
  const row = rowAt(history, 100.5);
  assert.equal(row.generated, (2 + 8) / 0.5);
  assert.equal(row.prompt, 70 / 0.5);
  assert.deepEqual([row.ttft50, row.ttft99], [2, 4]);
  assert.deepEqual([row.gap50, row.gap99], [0.02, 0.02]);
  assert.equal(row.waiting, 3);
  assert.equal(rowAt(history, 100).generated, undefined);
  assert.equal(rowAt(history, 101).generated, undefined);
});

test("steps that are left out count as those that are told", () => {
  const step = stepAt(100.6, { numTokens: 8, numDecodes: 8 });
  const history = historyOf(
    full,
    frameAt(100.7, { steps: [step], numOmittedSteps: 3 }),
    frameAt(102),
  );
  assert.equal(rowAt(history, 100.5).generated, (4 * 8) / 0.5);
});

test("what was missed before a full picture is not zero", () => {
  const history = historyOf(full, frameAt(101), frameAt(110, { isFull: true }), frameAt(112));
  assert.equal(rowAt(history, 105).generated, undefined);
  assert.equal(rowAt(history, 111).generated, 0);
});

test("a pause keeps what was known, whatever comes", () => {
  const history = historyOf(full, frameAt(101, { numWaiting: 5, numWrong: 1 }), frameAt(102));
  const frozen = history.frozen();
  history.add(frameAt(300, { numWaiting: 9 }), START_S + 300);
  assert.equal(frozen.picturesAt(frozen.now).get("s:1").numWaiting, 5);
  assert.equal(frozen.picturesAt(frozen.now).get("s:1").numWrong, 1);
  assert.equal(frozen.picturesAt(START_S + 100).get("s:1").numWaiting, 3);
  assert.equal(history.oldest, START_S + 300);
});

test("a clock that is set, or a machine that sleeps, leaves no view without news", () => {
  const history = historyOf(full, frameAt(101, { numWaiting: 4 }));
  const awake = START_S + 5_000; // the scheduler's clock has not counted the sleep
  history.add(frameAt(102, { numWaiting: 5 }), awake);
  assert.equal(history.now, awake);
  const back = START_S - 5_000;
  history.add(frameAt(103, { numWaiting: 6 }), back);
  history.add(frameAt(104, { numWaiting: 7 }), back + 1);
  assert.deepEqual([history.oldest, history.now], [back, back + 1]);
  assert.equal(history.picturesAt(back).get("s:1").numWaiting, 6);
});

test("a long recording is kept whole, with pictures at intervals", () => {
  const recording = { beginsAtNs: `${100e9}`, endsAtNs: `${3700e9}` };
  const history = new History();
  for (let second = 100; second <= 3700; second++) {
    history.add(
      { ...frameAt(second, { isFull: second === 100, numWaiting: second }), recording },
      0,
    );
  }
  assert.deepEqual([history.oldest, history.now], [0, 3600]);
  assert.ok(history.slices.flatMap(({ moments }) => moments).length < 2000);
  const found = history.picturesAt(1800).get("s:1").numWaiting;
  assert.ok(found <= 1900 && found > 1895, `${found}`);
});

test("workers and schedulers that come and go are told in words", () => {
  const joined = { number: 2, description: { address: "w:2", numGpuBlocks: 4 } };
  const draining = { number: 2, description: { ...joined.description, isDraining: true } };
  const history = historyOf(
    full,
    frameAt(101, { workers: [joined] }),
    frameAt(102, { workers: [draining] }),
    frameAt(103, { leftWorkers: [2] }),
  );
  history.add({ scheduler: "s:1", lost: "gone" }, START_S + 104);
  history.add({ scheduler: "s:1", lost: "gone" }, START_S + 105);
  assert.equal(history.pictures.get("s:1").workers.size, 0);
  history.add(frameAt(7, { isFull: true }), START_S + 106); // a scheduler with a clock of its own
  const events = history.slices.flatMap((slice) => slice.events);
  assert.deepEqual(
    events.map(({ at, text }) => [at - START_S, text]),
    [
      [101, "worker w:2 has joined"],
      [102, "worker w:2 drains"],
      [103, "worker w:2 has left"],
      [104, "is lost: gone"],
      [106, "is back"],
    ],
  );
});

test("a step is found by its worker and time, and said in words", () => {
  const step = stepAt(100.6, { numTokens: 70, prefillNumTokens: base64([64, 6], Int32Array) });
  const history = historyOf(
    full,
    frameAt(100.7, { steps: [{ ...step, numMoved: { blocks_copied: 2 } }] }),
  );
  const [from, to] = [START_S + 100, START_S + 101];
  assert.equal(stepsBetween(history, "s:1 2", from, to).length, 0);
  const [found] = stepsBetween(history, "s:1 1", from, to);
  assert.equal(
    wordsOf(found),
    "step 1, 20 ms · 2 chunks of prompts with 70 tokens · blocks copied: 2",
  );
});

test("a quantile counts weights", () => {
  assert.equal(
    quantile(
      [
        [1, 98],
        [9, 2],
      ],
      0.5,
    ),
    1,
  );
  assert.equal(
    quantile(
      [
        [9, 2],
        [1, 98],
      ],
      0.99,
    ),
    9,
  );
  assert.equal(quantile([], 0.5), undefined);
});
