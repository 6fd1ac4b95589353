/** Where a message is written: text, quoted files, and how full the model's window is. */

import { newMessage, quoted, requestFor } from "./conversations.js";
import { bytes, number } from "../lib/format.js";
import { useAnswer, useWindowEvent } from "../lib/hooks.js";
import { html, quietButton, useEffect, useRef, useState } from "../lib/html.js";
import { INFERENCE, call } from "../lib/rpc.js";

const MAX_FILE_BYTES = 256 * 1024;
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

/** Writes to the conversation that is open; what is typed stays when another is opened. */
export function Composer({ session }) {
  const [draft, setDraft] = useState(session.draft);
  const [complaint, setComplaint] = useState("");
  const { generation } = session;
  const quotes = draft.files.map(({ name, text }) => quoted(name, text));
  const whole = [draft.text.trim(), ...quotes].filter(Boolean).join("\n\n");
  useEffect(() => void (session.draft = draft), [draft]);
  const take = async (files) => {
    const read = await Promise.allSettled([...files].map(readText));
    const added = read.flatMap(({ value }) => value ?? []);
    setDraft((now) => ({ ...now, files: [...now.files, ...added] }));
    setComplaint(read.flatMap(({ reason }) => reason?.message ?? []).join(" "));
  };
  const remove = (file) => setDraft({ ...draft, files: draft.files.filter((one) => one !== file) });
  const send = (event) => {
    event.preventDefault();
    if (!whole || generation) return;
    setDraft({ text: "", files: [] });
    setComplaint("");
    session.say({ role: "user", text: whole });
  };
  const attach = ({ target }) => take(target.files).then(() => (target.value = ""));
  // Dropped anywhere: a browser would open the file instead of the page.
  useWindowEvent("dragover", (event) => event.preventDefault());
  useWindowEvent("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files);
  });
  return html`<form class="chat-column" onSubmit=${send}>
    ${complaint && html`<p class="bad" role="alert">${complaint}</p>`}
    ${draft.files.length > 0 && html`<${Files} files=${draft.files} onRemove=${remove} />`}
    <${Field} ...${{ draft, setDraft, send, take, generation }} />
    <div class="row">
      <label class="button">
        Attach text
        <input class="visually-hidden" type="file" multiple onChange=${attach} />
      </label>
      <${Fill} session=${session} draft=${whole} />
      ${
        generation
          ? html`<button type="button" onClick=${() => generation.abort()}>Stop</button>`
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

function Files({ files, onRemove }) {
  const removal = (file) =>
    quietButton("×", () => onRemove(file), { "aria-label": `Remove ${file.name}` });
  return html`<ul class="row" aria-label="Attached files">
    ${files.map((file) => html`<li>${file.name} ${removal(file)}</li>`)}
  </ul>`;
}

/** Shows how many tokens of the model's window the conversation takes, with what is being written. */
function Fill({ session, draft }) {
  const count = useCount(session, draft);
  const { maxModelLen = 0, effectiveMaxModelLen: most = maxModelLen } = session.model ?? {};
  if (count === null || !most) return html`<span class="chat-fill" />`;
  const isOver = count >= most;
  return html`<span class="chat-fill muted" title="The prompt's share of the model's window">
    <meter aria-label="Window" max=${most} high=${most * 0.9} optimum="0" value=${count} />
    ${` ${number(count)} / ${number(most)} tokens `}
    ${isOver && html`<strong class="bad">Too long</strong>`}
  </span>`;
}

/** Returns the tokens of the prompt as the server counts them; null if it does not. */
function useCount({ current, path, model }, draft) {
  const ask = async (signal) => {
    const turns = draft ? [...path, newMessage({ role: "user", text: draft })] : path;
    const chat = requestFor({ ...current, model: current.model || model?.name }, turns);
    if (!chat.messages.length) return 0;
    try {
      const request = { model: chat.model, chat };
      return (await call(INFERENCE, "Tokenize", request, { signal })).tokenIds?.length ?? 0;
    } catch {
      return null;
    }
  };
  return useAnswer(ask, COUNT_AFTER_MS, [draft, current, model?.name]);
}
