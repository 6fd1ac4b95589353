/** What the Why view draws of a request's history. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { ticksOf, traceOf } = await import(`${process.env.WHY}/timeline.js`);

test("the axis has few round times, for any length", () => {
  for (const end of [1e-6, 0.0032, 0.7, 11.5, 59, 3601]) {
    const ticks = ticksOf(end);
    assert.ok(ticks.length >= 2 && ticks.length <= 7, `${end}: ${ticks}`);
    assert.ok(ticks.at(-1) <= end);
  }
});

test("the file has each span and each event, in microseconds", () => {
  const spans = [
    { lane: "queue", endsAtNs: "1000000000", details: "queued" },
    { lane: "new", beginsAtNs: "3000000000", endsAtNs: "4000000000" },
  ];
  const lines = [{ atNs: "4000000000", event: "first token" }];
  const { traceEvents } = traceOf("request r at s:1", { spans, lines });
  const [queue, begins, ends] = ["X", "b", "e"].map((phase) =>
    traceEvents.find(({ ph }) => ph === phase),
  );
  assert.deepEqual([queue.name, queue.ts, queue.dur], ["queue", 0, 1e6]);
  assert.deepEqual([begins.name, begins.ts, ends.ts], ["new", 3e6, 4e6]);
  assert.equal(begins.id, ends.id);
  const threads = traceEvents.filter(({ name }) => name === "thread_name");
  assert.deepEqual(
    threads.map(({ tid }) => tid),
    [queue.tid, begins.tid],
  );
  const [instant] = traceEvents.filter(({ ph }) => ph === "i");
  assert.deepEqual([instant.name, instant.ts], ["first token", 4e6]);
});
