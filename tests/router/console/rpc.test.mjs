import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

const kept = new Map();
globalThis.document = { baseURI: "http://router/prefix/" };
globalThis.sessionStorage = {
  getItem: (name) => kept.get(name) ?? null,
  setItem: (name, value) => kept.set(name, value),
  removeItem: (name) => kept.delete(name),
};
const lib = `${process.env.CHAT}/../lib`;
const { INFERENCE, call, retrying, stream } = await import(`${lib}/rpc.js`);
const { onLost } = await import(`${lib}/connection.js`);
const { getKey, setKey, setKeyDialog } = await import(`${lib}/key.js`);

let asked = [];
let answers = [];
let numLost = 0;
onLost(() => numLost++);
beforeEach(() => {
  numLost = 0;
  asked = [];
  setKey("");
});

globalThis.fetch = async (url, { headers, body, signal }) => {
  signal?.throwIfAborted();
  asked.push({ url: String(url), headers, body });
  const answer = answers.shift();
  if (answer instanceof Error) throw answer;
  return answer;
};

const encoder = new TextEncoder();

function envelope(message, flags = 0) {
  const data = encoder.encode(JSON.stringify(message));
  const bytes = new Uint8Array(5 + data.length);
  bytes[0] = flags;
  new DataView(bytes.buffer).setUint32(1, data.length);
  bytes.set(data, 5);
  return bytes;
}

/** Returns an answer whose body comes in parts of `size` bytes, and what is told of its end. */
function streamed(parts, { size = Infinity, onCancel = () => {} } = {}) {
  const whole = parts.flatMap((part) => [...part]);
  const body = new ReadableStream({
    pull(controller) {
      if (!whole.length) return controller.close();
      controller.enqueue(Uint8Array.from(whole.splice(0, Math.min(size, whole.length))));
    },
    cancel: onCancel,
  });
  return new Response(body, { headers: { "content-type": "application/connect+json" } });
}

const END = envelope({}, 2);
const refusal = (code, status) => Response.json({ code, message: `${code} it is` }, { status });

async function all(messages) {
  const got = [];
  for await (const message of messages) got.push(message);
  return got;
}

test("a call goes below the page's address, and its answer is read", async () => {
  answers = [Response.json({ name: "tiny" })];
  assert.deepEqual(await call(INFERENCE, "GetModel", { name: "t" }), { name: "tiny" });
  const [{ url, headers, body }] = asked;
  assert.equal(url, `http://router/prefix/${INFERENCE}/GetModel`);
  assert.deepEqual([headers["content-type"], body], ["application/json", '{"name":"t"}']);
  assert.ok(!("authorization" in headers));
});

test("messages are read however their bytes are cut", async () => {
  const parts = [envelope({ text: "東京" }), envelope({}), envelope({ n: 3 }), END];
  for (const size of [1, 2, 5, 7, 1000]) {
    answers = [streamed(parts, { size })];
    assert.deepEqual(await all(stream(INFERENCE, "Chat")), [{ text: "東京" }, {}, { n: 3 }]);
  }
});

test("a stream without its end has broken off", async () => {
  for (const parts of [[], [envelope({ n: 1 })], [envelope({ n: 1 }), END.slice(0, 6)]]) {
    answers = [streamed(parts)];
    await assert.rejects(all(stream(INFERENCE, "Chat")), { code: "unavailable" });
  }
  assert.equal(numLost, 3);
});

test("a stream may end with an error, with details", async () => {
  const details = [
    { type: "google.rpc.RetryInfo", value: "", debug: { retryDelay: "2.5s" } },
    { type: "google.rpc.BadRequest", value: "", debug: { fieldViolations: [{ field: "top_p" }] } },
  ];
  const error = { code: "resource_exhausted", message: "full", details };
  answers = [streamed([envelope({ n: 1 }), envelope({ error }, 2)])];
  const messages = stream(INFERENCE, "Chat");
  assert.deepEqual((await messages.next()).value, { n: 1 });
  await assert.rejects(messages.next(), (failure) => {
    assert.equal(failure.message, "full");
    assert.equal(failure.retryAfterS, 2.5);
    assert.ok(failure.isTemporary);
    assert.deepEqual(failure.details[1].fieldViolations, [{ field: "top_p" }]);
    return true;
  });
});

test("leaving a stream ends the call", async () => {
  const onCancel = mock.fn();
  answers = [streamed([envelope({ n: 1 }), envelope({ n: 2 }), END], { size: 12, onCancel })];
  for await (const message of stream(INFERENCE, "Chat")) {
    assert.deepEqual(message, { n: 1 });
    break;
  }
  assert.equal(onCancel.mock.callCount(), 1);
});

test("what is no answer of Connect is the proxy's, or the network's", async () => {
  const page = (status) => new Response("<html>", { status, headers: { "retry-after": "7" } });
  answers = [page(502), page(404), new TypeError("Failed to fetch")];
  await assert.rejects(call(INFERENCE, "GetModel"), { code: "unavailable", retryAfterS: 7 });
  assert.equal(numLost, 1);
  await assert.rejects(call(INFERENCE, "GetModel"), { code: "unknown", isTemporary: false });
  await assert.rejects(call(INFERENCE, "GetModel"), { code: "unavailable" });
});

test("a call that needs a key asks for one, once for all that wait", async () => {
  const dialog = mock.fn(async () => (setKey("sb-1"), true));
  setKeyDialog(dialog);
  answers = [refusal("unauthenticated", 401), refusal("unauthenticated", 401)];
  answers.push(Response.json({ n: 1 }), Response.json({ n: 2 }));
  const both = await Promise.all([call(INFERENCE, "A"), call(INFERENCE, "B")]);
  assert.deepEqual(both.map(({ n }) => n).sort(), [1, 2]);
  assert.equal(dialog.mock.callCount(), 1);
  assert.deepEqual(dialog.mock.calls[0].arguments, ["unauthenticated it is"]);
  assert.deepEqual(
    asked.map(({ headers }) => headers.authorization),
    [undefined, undefined, "Bearer sb-1", "Bearer sb-1"],
  );
});

test("a key that is refused is asked for again, until the user declines", async () => {
  const given = ["sb-1", ""];
  const dialog = mock.fn(async () => {
    const key = given.shift();
    if (key) setKey(key);
    return Boolean(key);
  });
  setKeyDialog(dialog);
  const denied = () => streamed([envelope({ error: { code: "permission_denied" } }, 2)]);
  answers = [refusal("unauthenticated", 401), denied(), denied()];
  await assert.rejects(all(stream(INFERENCE, "Watch")), { code: "permission_denied" });
  await assert.rejects(all(stream(INFERENCE, "Watch")), { code: "permission_denied" });
  assert.equal(dialog.mock.callCount(), 2);
  assert.equal(getKey(), "sb-1");
});

test("an abort ends a call, and is no fault of the server", async () => {
  answers = [];
  await assert.rejects(call(INFERENCE, "A", {}, { signal: AbortSignal.abort() }), {
    isCanceled: true,
  });
  assert.equal(numLost, 0);
});

test("pauses between tries grow, and are short again behind a success", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const pauses = [];
  let tries = 0;
  const run = async (succeeded) => {
    tries += 1;
    if (tries === 8) succeeded();
    if (tries === 10) return "done";
    answers = [new TypeError("Failed to fetch")];
    return call(INFERENCE, "A");
  };
  const onPause = (_, seconds) => {
    pauses.push(seconds);
    setImmediate(() => mock.timers.tick(seconds * 1000));
  };
  assert.equal(await retrying(undefined, run, onPause), "done");
  mock.timers.reset();
  const longest = [0.5, 1, 2, 4, 8, 15, 15, 0.5, 1];
  assert.equal(pauses.length, longest.length);
  pauses.forEach((one, at) => assert.ok(one >= longest[at] / 2 && one <= longest[at], `${at}`));
});

test("an error that will not pass, or an abort in a pause, ends the tries", async () => {
  answers = [refusal("invalid_argument", 400)];
  const run = () => call(INFERENCE, "A");
  await assert.rejects(retrying(undefined, run), { code: "invalid_argument" });
  const control = new AbortController();
  answers = [refusal("unavailable", 503)];
  const onPause = () => control.abort();
  await assert.rejects(retrying(control.signal, run, onPause), { isCanceled: true });
  assert.equal(asked.length, 2);
});
