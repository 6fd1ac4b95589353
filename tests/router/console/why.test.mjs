/** What the Why view says and draws of a request's history. */

import assert from "node:assert/strict";
import { test } from "node:test";

const { detailsOf, prefixOf, rowsOf } = await import(`${process.env.WHY}/words.js`);
const { spansOf, ticksOf, traceOf } = await import(`${process.env.WHY}/spans.js`);

const event = (kind, seconds, fields = {}) => ({
  kind: `EVENT_KIND_${kind}`,
  atNs: String(seconds * 1e9),
  ...fields,
});
const lanesOf = (explanation) =>
  spansOf({ ageNs: "10000000000", ...explanation }).map(({ lane, from, to }) => [lane, from, to]);

const BEGINNING = [
  event("QUEUED", 0),
  event("SCHEDULED", 1),
  event("PREFILL", 1, { stepId: "1", numTokens: 8 }),
  event("PREFILL", 2, { stepId: "2", numTokens: 4 }),
  event("FIRST_TOKEN", 3),
];

test("a request waits, computes its prompt in chunks, and decodes", () => {
  const found = lanesOf({ events: [...BEGINNING, event("ENDED", 10)] });
  assert.deepEqual(found, [
    ["queue", 0, 1],
    ["prefill", 1, 2],
    ["prefill", 2, 3],
    ["decode", 3, 10],
  ]);
});

test("a request that waits has no end yet", () => {
  assert.deepEqual(lanesOf({ events: [event("QUEUED", 0)] }), [["queue", 0, 10]]);
});

test("what is swapped out decodes on when it is back", () => {
  const events = [
    ...BEGINNING,
    event("PREEMPTED", 5, { isSwap: true }),
    event("RESUMED", 7, { isSwap: true }),
  ];
  assert.deepEqual(lanesOf({ events }).slice(3), [
    ["decode", 3, 5],
    ["preempted", 5, 7],
    ["decode", 7, 10],
  ]);
});

test("what is recomputed decodes behind the last chunk of successive steps", () => {
  const events = [
    ...BEGINNING,
    event("PREEMPTED", 5),
    event("RESUMED", 6, { stepId: "9" }),
    event("PREFILL", 6, { stepId: "9" }),
    event("PREFILL", 7, { stepId: "10" }),
    event("PREFILL", 9, { stepId: "20" }),
  ];
  assert.deepEqual(lanesOf({ events }).slice(4), [
    ["preempted", 5, 6],
    ["prefill", 6, 7],
    ["prefill", 7, 7],
    ["decode", 7, 9],
    ["prefill", 9, 9],
    ["decode", 9, 10],
  ]);
});

test("a request whose worker is lost waits in the queue until another one takes it", () => {
  const events = [...BEGINNING, event("MOVED", 5), event("QUEUED", 5), event("RESUMED", 8)];
  assert.deepEqual(lanesOf({ events }).slice(3), [
    ["moved", 5, 5],
    ["decode", 3, 5],
    ["queue", 5, 8],
    ["prefill", 8, 10],
  ]);
});

test("the cause of a broken prefix is told from a prompt that was cached as far as can be", () => {
  const events = BEGINNING;
  const said = (numPromptTokens, numCachedTokens, blockSize) =>
    prefixOf({ numPromptTokens, numCachedTokens, blockSize, events });
  assert.match(said(100, 96, 16), /^Nothing broke its prefix: only the last 4 tokens/);
  assert.match(said(96, 80, 16), /^Nothing broke its prefix: only the last 16 tokens/);
  assert.match(said(16, 0, 16), /fills no block of 16/);
  assert.match(said(100, 32, 16), /^Its prefix broke after 32 tokens\. .* tokens 33 to 48 /);
  assert.match(said(100, 32, 0), /^Its prefix broke after 32 tokens\. What follows token 32 /);
  assert.equal(prefixOf({ numPromptTokens: 9, events: [event("QUEUED", 0)] }), "");
});

test("the chunks of a prefill are one row", () => {
  assert.deepEqual(rowsOf(BEGINNING)[2], [
    "1.000 s",
    "prefill",
    "12 tokens in 2 chunks, steps 1 to 2",
  ]);
});

test("events are told in the words of the command", () => {
  const swapped = { numBlocks: 1, isSwap: true, otherRequestId: "b", stepId: "7" };
  assert.equal(detailsOf(event("PREEMPTED", 1, swapped)), "1 block swapped out, for b, step 7");
  const stored = { numBlocks: 2, numBytes: "2048", durationNs: "1500000", store: "disk" };
  assert.equal(detailsOf(event("STORED", 1, stored)), "2 blocks, 2 KiB in 1.5 ms to the disk");
  const waits = [{ reason: "WAIT_REASON_BLOCKS", durationNs: "2000000000" }];
  const scheduled = { worker: "a:1", stepId: "3", waits };
  assert.equal(
    detailsOf(event("SCHEDULED", 1, scheduled)),
    "by a:1, step 3; waited for KV blocks 2 s",
  );
  assert.equal(detailsOf(event("SOMETHING_NEW", 1, { detail: "seen" })), "seen");
});

test("the axis has few round times, for any length", () => {
  for (const end of [1e-6, 0.0032, 0.7, 11.5, 59, 3601]) {
    const ticks = ticksOf(end);
    assert.ok(ticks.length >= 2 && ticks.length <= 7, `${end}: ${ticks}`);
    assert.ok(ticks.at(-1) <= end);
  }
});

test("the file has each span and each event, in microseconds", () => {
  const events = [...BEGINNING, event("STORED", 4, { durationNs: "1000000000" })];
  const { traceEvents } = traceOf("s:1", { requestId: "r", ageNs: "10000000000", events });
  const spans = traceEvents.filter(({ ph }) => ph === "X");
  assert.deepEqual(
    spans.map(({ name, ts, dur }) => [name, ts, dur]),
    [
      ["queue", 0, 1e6],
      ["prefill", 1e6, 1e6],
      ["prefill", 2e6, 1e6],
      ["decode", 3e6, 7e6],
    ],
  );
  assert.equal(traceEvents.filter(({ ph }) => ph === "i").length, events.length);
  const [begins, ends] = ["b", "e"].map((phase) => traceEvents.find(({ ph }) => ph === phase));
  assert.deepEqual([begins.id, begins.ts, ends.ts], [ends.id, 3e6, 4e6]);
});
