import assert from "node:assert/strict";
import { test } from "node:test";

const {
  choose,
  firstWords,
  fromFile,
  newConversation,
  newId,
  newMessage,
  openCalls,
  pathOf,
  quoted,
  requestFor,
  siblingsOf,
  toFile,
  withMessage,
} = await import(`${process.env.CHAT}/conversations.js`);

const textsOf = (conversation) => pathOf(conversation).map(({ text }) => text);

/** Returns a conversation of these [role, text], each the answer to the one before. */
function makeConversation(...turns) {
  let conversation = newConversation({ model: "m" });
  let parent = null;
  for (const [index, [role, text, fields]] of turns.entries()) {
    const message = newMessage({ parent, role, text, now: 1000 + index, ...fields });
    conversation = withMessage(conversation, message);
    parent = message.id;
  }
  return conversation;
}

const greeting = () => makeConversation(["user", "Hello"], ["assistant", "Hi"], ["user", "Bye"]);

test("ids sort by time and differ", () => {
  assert.ok(newId(999) < newId(1000));
  assert.equal(new Set(Array.from({ length: 1000 }, () => newId(1))).size, 1000);
});

test("a sibling of a question is a branch, and both branches can be shown", () => {
  const before = greeting();
  const [hello, , bye] = pathOf(before);
  const branch = newMessage({ parent: hello.parent, role: "user", text: "Good day", now: 2000 });
  const after = withMessage(before, branch);
  assert.deepEqual(textsOf(after), ["Good day"]);
  assert.deepEqual(siblingsOf(after, branch), [hello.id, branch.id]);
  assert.deepEqual(textsOf(choose(after, hello.id)), ["Hello", "Hi", "Bye"]);
  assert.deepEqual(textsOf(choose(after, bye.id)), ["Hello", "Hi", "Bye"]);
  assert.deepEqual(textsOf(before), ["Hello", "Hi", "Bye"]);
});

test("a regenerated answer is a sibling, and what followed the other is kept behind it", () => {
  const before = greeting();
  const [hello, hi] = pathOf(before);
  const other = newMessage({ parent: hello.id, role: "assistant", text: "Welcome", now: 2000 });
  const after = withMessage(before, other);
  assert.deepEqual(textsOf(after), ["Hello", "Welcome"]);
  assert.deepEqual(textsOf(choose(after, hi.id)), ["Hello", "Hi", "Bye"]);
});

test("a replaced message stays where it is, and does not change what is shown", () => {
  const before = greeting();
  const [hello, hi] = pathOf(before);
  const other = newMessage({ parent: hello.id, role: "assistant", text: "Welcome", now: 2000 });
  const after = withMessage(withMessage(before, other), { ...hi, text: "Hi there" });
  assert.deepEqual(textsOf(after), ["Hello", "Welcome"]);
  assert.deepEqual(siblingsOf(after, hi), [hi.id, other.id]);
});

test("a selection that names no child shows the newest one", () => {
  const conversation = { ...greeting(), selected: { "": "gone" } };
  assert.deepEqual(textsOf(conversation), ["Hello", "Hi", "Bye"]);
});

test("the first words of the first question are the title, unless it has one", () => {
  assert.equal(greeting().title, "Hello");
  const named = { ...newConversation(), title: "Mine" };
  assert.equal(withMessage(named, newMessage({ role: "user", text: "Hello" })).title, "Mine");
  assert.equal(firstWords("  one\n two  "), "one two");
  assert.equal(firstWords("word ".repeat(30), 20), "word word word word…");
  assert.equal(firstWords("x".repeat(30), 20), `${"x".repeat(19)}…`);
});

test("a request has the system prompt, the parameters and the turns, without failed answers", () => {
  const conversation = {
    ...makeConversation(
      ["user", "Hello"],
      ["assistant", "", { error: "lost" }],
      ["user", "Hello?"],
    ),
    system: "Be brief.",
    params: { samplingParams: { temperature: 0 } },
  };
  const request = requestFor(conversation, pathOf(conversation));
  assert.deepEqual(JSON.parse(JSON.stringify(request)), {
    model: "m",
    samplingParams: { temperature: 0 },
    messages: [
      { role: "CHAT_ROLE_SYSTEM", content: [{ text: "Be brief." }] },
      { role: "CHAT_ROLE_USER", content: [{ text: "Hello" }] },
      { role: "CHAT_ROLE_USER", content: [{ text: "Hello?" }] },
    ],
  });
});

test("calls are open until each has a result", () => {
  const calls = ["a", "b"].map((id) => ({ id, name: "look", arguments: "{}" }));
  const turns = [
    ["user", "Look"],
    ["assistant", "", { toolCalls: calls }],
    ["tool", "seen", { toolCallId: "a" }],
    ["tool", "seen too", { toolCallId: "b" }],
  ];
  const openAfter = (count) => openCalls(pathOf(makeConversation(...turns.slice(0, count))));
  assert.deepEqual(
    [1, 2, 3, 4].map((n) => openAfter(n).length),
    [0, 2, 1, 0],
  );
  const skipped = makeConversation(...turns.slice(0, 2), ["user", "Never mind"]);
  assert.deepEqual(openCalls(pathOf(skipped)), []);
  const { messages } = requestFor(skipped, pathOf(skipped));
  assert.deepEqual(messages[1].content, []);
  assert.deepEqual(messages[1].toolCalls, calls);
});

test("a file gives the same conversations back, under new ids", () => {
  const before = greeting();
  const [hello] = pathOf(before);
  const conversation = withMessage(before, newMessage({ role: "user", text: "Again", now: 9 }));
  const [read] = fromFile(toFile([conversation]));
  assert.deepEqual(textsOf(read), ["Again"]);
  assert.notEqual(read.id, conversation.id);
  assert.deepEqual(textsOf(choose(read, hello.id)), ["Hello", "Hi", "Bye"]);
  assert.equal(read.title, conversation.title);
  assert.equal(read.updatedAt, conversation.updatedAt);
});

test("a file has each message behind the one that it follows, in whatever order they are kept", () => {
  const conversation = greeting();
  const messages = new Map([...conversation.messages].reverse());
  const [read] = fromFile(toFile([{ ...conversation, messages }]));
  assert.deepEqual(textsOf(read), ["Hello", "Hi", "Bye"]);
});

test("a file that is broken or of another program is refused with the reason", () => {
  const change = (work) => {
    const file = JSON.parse(toFile([greeting()]));
    work(file.conversations[0], file);
    return JSON.stringify(file);
  };
  const refused = [
    [toFile([greeting()]).slice(0, -20), /not JSON, or is cut/],
    ['{"chats": []}', /no conversations of this console/],
    ["null", /no conversations of this console/],
    [change((_, file) => (file.version = 2)), /version 2/],
    [change((_, file) => (file.conversations = {})), /no list/],
    [toFile([]), /an empty one/],
    [change((one) => (one.messages = null)), /Conversation 1 has no messages/],
    [change((one) => (one.messages[1] = null)), /message 2 is broken/],
    [change((one) => (one.messages[1].role = "constructor")), /message 2 is broken/],
    [change((one) => (one.messages[1].text = { type: "img" })), /message 2 is broken/],
    [change((one) => (one.messages[1].toolCalls = [{ id: 1 }])), /message 2 is broken/],
    [change((one) => (one.messages[1].logprobs = [null])), /message 2 is broken/],
    [change((one) => (one.messages[1].logprobs = [{ sampled: {}, top: 5 }])), /message 2/],
    [change((one) => (one.messages[1].logprobs = [{ sampled: { text: 5 } }])), /message 2/],
    [change((one) => (one.messages[1].createdAt = 1e300)), /message 2 is broken/],
  ];
  for (const [text, reason] of refused) assert.throws(() => fromFile(text), reason);
});

test("fields of a file that have another type are empty, and circles are left out", () => {
  const file = JSON.parse(toFile([greeting()]));
  const [{ messages }] = file.conversations;
  Object.assign(file.conversations[0], {
    title: { type: "img" },
    params: [],
    selected: 3,
    updatedAt: 1e300,
  });
  Object.assign(messages[1], { usage: null, parent: messages[2].id });
  const [read] = fromFile(JSON.stringify(file));
  assert.deepEqual([read.title, read.params, read.selected], ["", {}, {}]);
  assert.deepEqual(textsOf(read), ["Hello"]);
  assert.equal(read.messages.size, 1);
  assert.ok(new Date(read.updatedAt).toISOString());
});

test("params of a file that Settings could not show are left out", () => {
  const read = (params) => {
    const file = JSON.parse(toFile([greeting()]));
    file.conversations[0].params = params;
    return fromFile(JSON.stringify(file))[0].params;
  };
  const right = {
    samplingParams: {
      temperature: "0.5",
      seed: 1,
      stop: ["a"],
      ignoreEos: true,
      structuredOutput: { jsonSchema: "{}" },
    },
    thinking: { effort: "low", budget: 5 },
    tools: [{ name: "look" }, { type: "function", function: { name: "see" } }],
  };
  assert.deepEqual(read(right), right);
  assert.deepEqual(read({ tools: { name: "look" } }), { tools: { name: "look" } });
  const broken = { toString: 5, join: 5 };
  const samplingParams = {
    seed: 1,
    stop: broken,
    topP: broken,
    topK: [null],
    minP: null,
    other: 1,
  };
  const structuredOutput = { jsonSchema: broken };
  const wrong = { toolChoice: { mode: 5 }, tools: [null], thinking: "much", model: "other" };
  const params = { ...wrong, samplingParams: { ...samplingParams, structuredOutput } };
  assert.deepEqual(read(params), { samplingParams: { seed: 1 } });
  for (const tools of [{ name: 5 }, [{ name: 5 }], [{ function: {} }], "look"]) {
    assert.deepEqual(read({ tools, samplingParams: 5, thinking: [5] }), {});
  }
});

test("tools are asked for in the form of the RPC, however they are typed", () => {
  const parameters = { type: "object" };
  const tool = { name: "look", parameters };
  const asked = (tools) => requestFor({ ...newConversation(), params: { tools } }, []).tools;
  for (const tools of [tool, [tool], [{ type: "function", function: tool }], asked([tool])]) {
    const [{ name, parameters: schema }] = asked(tools);
    assert.deepEqual([name, JSON.parse(schema)], ["look", parameters]);
  }
});

test("a quoted file cannot end its own quotation", () => {
  assert.equal(quoted("a.md", "x\n````\ny\n"), "a.md:\n`````\nx\n````\ny\n`````");
  assert.equal(quoted("a.txt", "x"), "a.txt:\n```\nx\n```");
});

test("10,000 messages are walked at once", () => {
  const turns = Array.from({ length: 10_000 }, (_, n) => [n % 2 ? "assistant" : "user", `${n}`]);
  const messages = new Map();
  let parent = null;
  for (const [index, [role, text]] of turns.entries()) {
    const message = newMessage({ parent, role, text, now: index });
    messages.set(message.id, message);
    parent = message.id;
  }
  const conversation = { ...newConversation(), messages };
  assert.equal(pathOf(conversation).length, 10_000);
  assert.equal(pathOf(fromFile(toFile([conversation]))[0]).at(-1).text, "9999");
});
