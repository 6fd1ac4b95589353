/** Where a message is written: text, quoted files, and how full the model's window is. */

import { newMessage, quoted, requestFor } from "./conversations.js";
import { bytes, number } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { INFERENCE, call } from "../lib/rpc.js";

const MAX_FILE_BYTES = 256 * 1024;
const MAX_COUNTED_CHARS = 2e6;
const COUNT_AFTER_MS = 400;

/** Returns `{name, text}` of a text file. Throws an Error that says why it cannot be quoted. */
async function readText(file) {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(`${file.name} has ${bytes(file.size)}; at most ${bytes(MAX_FILE_BYTES)}.`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, text };
  } catch {
    // said below
  }
  throw new Error(`${file.name} is not text in UTF-8.`);
}

/** Composes for one conversation, which is its key. */
export function Composer({ session }) {
  const { id } = session.current;
  const [draft, setDraft] = useState(() => session.drafts.get(id) ?? { text: "", files: [] });
  const [complaint, setComplaint] = useState("");
  const { generation } = session;
  const whole = [draft.text.trim(), ...draft.files.map(({ name, text }) => quoted(name, text))]
    .filter(Boolean)
    .join("\n\n");
  useEffect(() => void session.drafts.set(id, draft), [draft]);
  const take = async (files) => {
    const read = await Promise.allSettled([...files].map(readText));
    const added = read.flatMap(({ value }) => value ?? []);
    setDraft((now) => ({ ...now, files: [...now.files, ...added] }));
    setComplaint(read.flatMap(({ reason }) => reason?.message ?? []).join(" "));
  };
  useDrop(take);
  const send = (event) => {
    event.preventDefault();
    if (!whole || generation) return;
    setDraft({ text: "", files: [] });
    setComplaint("");
    session.say(whole);
  };
  return html`<form class="chat-composer" onSubmit=${send}>
    ${complaint && html`<p class="chat-complaint" role="alert">${complaint}</p>`}
    <${Files}
      files=${draft.files}
      onRemove=${(file) => setDraft({ ...draft, files: draft.files.filter((one) => one !== file) })}
    />
    <${Field} ...${{ draft, setDraft, send, take, generation }} />
    <div class="chat-row">
      <label class="chat-attach">
        Attach text
        <input
          type="file"
          multiple
          onChange=${({ target }) => {
            take(target.files).then(() => (target.value = ""));
          }}
        />
      </label>
      <${Fill} session=${session} draft=${whole} />
      ${
        generation
          ? html`<button type="button" onClick=${() => generation.stop()}>Stop</button>`
          : html`<button class="primary" disabled=${!whole}>Send</button>`
      }
    </div>
  </form>`;
}

function Field({ draft, setDraft, send, take, generation }) {
  const field = useRef();
  useEffect(() => field.current.focus(), []);
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  const onPaste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    take(event.clipboardData.files);
  };
  return html`<textarea
    id="chat-field"
    ref=${field}
    aria-label="Message"
    aria-keyshortcuts="Enter"
    dir="auto"
    placeholder=${generation ? "The model answers…" : "Message"}
    rows=${Math.min(12, Math.max(2, draft.text.split("\n").length))}
    value=${draft.text}
    onInput=${({ target }) => setDraft({ ...draft, text: target.value })}
    onKeyDown=${onKeyDown}
    onPaste=${onPaste}
  />`;
}

/** Takes files that are dropped anywhere, which a browser would otherwise open instead of the page. */
function useDrop(take) {
  useEffect(() => {
    const allow = (event) => event.preventDefault();
    const drop = (event) => {
      event.preventDefault();
      take(event.dataTransfer.files);
    };
    addEventListener("dragover", allow);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragover", allow);
      removeEventListener("drop", drop);
    };
  }, []);
}

function Files({ files, onRemove }) {
  if (!files.length) return null;
  return html`<ul class="chat-files" aria-label="Attached files">
    ${files.map(
      (file) =>
        html`<li>
          ${file.name} <small>${bytes(new Blob([file.text]).size)}</small>
          <button
            type="button"
            class="quiet"
            aria-label="Remove ${file.name}"
            onClick=${() => onRemove(file)}
          >
            ×
          </button>
        </li>`,
    )}
  </ul>`;
}

/** Shows how many tokens of the model's window the conversation takes, with what is being written. */
function Fill({ session, draft }) {
  const count = useCount(session, draft);
  const { maxModelLen = 0, effectiveMaxModelLen: most = maxModelLen } = session.model ?? {};
  if (count === null || !most) return html`<span class="chat-fill" />`;
  const isOver = count >= most;
  return html`<span class="chat-fill" title="The prompt's share of the model's window">
    <meter aria-label="Window" max=${most} high=${most * 0.9} optimum="0" value=${count} />
    ${`${number(count)} / ${number(most)} tokens`}${isOver && html`<strong> Too long</strong>`}
  </span>`;
}

/** Returns the tokens of the prompt, counted by the server or else by the last answer; or null. */
function useCount({ current, path, model, generation }, draft) {
  const [count, setCount] = useState(null);
  useEffect(() => {
    if (generation) return undefined;
    const controller = new AbortController();
    const ask = async () => {
      const { signal } = controller;
      const turns = draft ? [...path, newMessage({ role: "user", text: draft })] : path;
      const length = turns.reduce((sum, { text }) => sum + text.length, 0);
      if (length > MAX_COUNTED_CHARS) return counted(path);
      const chat = requestFor({ ...current, model: current.model || model?.name }, turns);
      if (!chat.messages.length) return 0;
      const request = { model: chat.model, chat };
      const { tokenIds } = await call(INFERENCE, "Tokenize", request, { signal });
      return tokenIds?.length ?? 0;
    };
    const timer = setTimeout(async () => {
      const found = await ask().catch(() => counted(path));
      if (!controller.signal.aborted) setCount(found);
    }, COUNT_AFTER_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [draft, current, model?.name, generation]);
  return count;
}

/** Returns the tokens of the prompt and the text of the last answer; null if there is none. */
function counted(path) {
  const { usage } = path.findLast((one) => one.usage?.promptTokens) ?? {};
  return usage ? usage.promptTokens + (usage.completionTokens ?? 0) : null;
}
