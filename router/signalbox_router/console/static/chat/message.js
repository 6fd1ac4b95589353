/** One message of a conversation, with what is known of it and what can be done with it. */

import { html, useState } from "../lib/html.js";
import { duration, number } from "../lib/format.js";
import { Copy, Markdown } from "./markdown.js";
import { Tokens } from "./tokens.js";

const AUTHORS = { system: "System", user: "You", tool: "Result of a tool" };
const ENDS = {
  __proto__: null, // a file may name any reason
  FINISH_REASON_LENGTH: () => "cut at max_tokens or the window's end",
  FINISH_REASON_STOP_STRING: ({ stop }) => `ended at the stop string ${JSON.stringify(stop)}`,
  FINISH_REASON_STOP_TOKEN: ({ stopTokenId }) => `ended at the stop token ${stopTokenId ?? 0}`,
  FINISH_REASON_ERROR: ({ errorMessage }) => `failed: ${errorMessage}`,
  FINISH_REASON_TOOL_CALLS: () => "asks for results of tools",
  STOPPED: () => "stopped by you",
};

const button = (label, onClick, props) =>
  html`<button type="button" class="quiet" ...${{ onClick, ...props }}>${label}</button>`;

/**
 * Shows a message.
 *
 * @param siblings ids of the message and its alternatives, oldest first.
 * @param openCalls calls that have no result yet.
 * @param onEdit called with the message and its new text; `onRegenerate` with the message;
 *   `onBranch` with the sibling's id; `onToolResult` with a call and the text of its result. What is
 *   not given cannot be done.
 */
export function Message({ message, siblings = [], openCalls = [], isStreaming, ...actions }) {
  const { role, text, reasoning, toolCalls = [], error, model } = message;
  const [isEdited, setEdited] = useState(false);
  const [showsTokens, setShowsTokens] = useState(false);
  const author = AUTHORS[role] ?? (model || "Assistant");
  const save = (changed) => {
    setEdited(false);
    actions.onEdit(message, changed);
  };
  return html`<article class="chat-message chat-${role}" aria-label=${author}>
    <header><strong>${author}</strong></header>
    ${reasoning && html`<${Reasoning} message=${message} />`}
    ${
      isEdited
        ? html`<${Entry} label="Text of the message" text=${text} verb=${role === "user" ? "Send" : "Save"} onSend=${save}>
            ${button("Cancel", () => setEdited(false))}
          </${Entry}>`
        : html`<${Body} message=${message} showsTokens=${showsTokens} />`
    }
    ${toolCalls.map((call) => {
      const isOpen = !isStreaming && openCalls.some(({ id }) => id === call.id);
      return html`<${Call}
        key=${call.id}
        call=${call}
        onResult=${isOpen && actions.onToolResult}
      />`;
    })}
    ${error && html`<p class="chat-error" role="alert" dir="auto">${error}</p>`}
    ${
      !isStreaming &&
      html`<footer>
        <${Branches} id=${message.id} siblings=${siblings} onBranch=${actions.onBranch} />
        ${text && html`<${Copy} text=${text} what="the message" />`}
        ${actions.onEdit && button("Edit", () => setEdited(!isEdited), { "aria-pressed": isEdited })}
        ${actions.onRegenerate && button("Regenerate", () => actions.onRegenerate(message))}
        ${
          message.logprobs?.length > 0 &&
          button("Probabilities", () => setShowsTokens(!showsTokens), {
            "aria-pressed": showsTokens,
          })
        }
        ${message.requestId && html`<a href="#/why/${encodeURIComponent(message.requestId)}">Why</a>`}
        <small>${factsOf(message).join(" · ")}</small>
      </footer>`
    }
  </article>`;
}

function Body({ message: { id, role, text, logprobs }, showsTokens }) {
  if (showsTokens) return html`<${Tokens} id=${id} logprobs=${logprobs} />`;
  if (role === "assistant") return html`<${Markdown} text=${text} />`;
  return html`<div class="chat-text" dir="auto">${role === "tool" ? pretty(text) : text}</div>`;
}

function Reasoning({ message: { reasoning, usage } }) {
  const count = usage?.reasoningTokens;
  return html`<details class="chat-reasoning">
    <summary>Reasoning${count ? `, ${number(count)} tokens` : ""}</summary>
    <${Markdown} text=${reasoning} />
  </details>`;
}

const focus = (field) => field?.focus();

/** A text to type; Enter with Ctrl sends it, too. */
function Entry({ label, text = "", verb = "Send", onSend, children }) {
  const [draft, setDraft] = useState(text);
  const send = (event) => {
    event.preventDefault();
    onSend(draft);
  };
  return html`<form onSubmit=${send}>
    <textarea
      aria-label=${label}
      placeholder=${label}
      dir="auto"
      rows=${Math.min(20, draft.split("\n").length + 1)}
      value=${draft}
      ref=${text && focus}
      onInput=${({ target }) => setDraft(target.value)}
      onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send(event)}
    />
    <button class="primary">${verb}</button>${children}
  </form>`;
}

/** Returns JSON on several lines, with its numbers as they were written; another text as it is. */
function pretty(text) {
  const asWritten = (key, value, { source }) =>
    typeof value === "number" && JSON.rawJSON ? JSON.rawJSON(source) : value;
  try {
    return JSON.stringify(JSON.parse(text, asWritten), null, 2);
  } catch {
    return text;
  }
}

function Call({ call, onResult }) {
  const send = (text) => onResult(call, text);
  return html`<section class="chat-call">
    <div>calls <code>${call.name}</code></div>
    <pre tabindex="0">${pretty(call.arguments)}</pre>
    ${onResult && html`<${Entry} label="Result of ${call.name}" onSend=${send} />`}
  </section>`;
}

/** Returns what is known of an answer, in words. */
function factsOf({ usage = {}, timing = {}, finish = {} }) {
  const { completionTokens: count, promptTokens, cachedTokens = 0 } = usage;
  return [
    count && `${number(count)} ${count === 1 ? "token" : "tokens"}`,
    timing.tokensPerS && `${number(timing.tokensPerS)} tokens/s`,
    timing.firstTokenMs && `first token after ${duration(timing.firstTokenMs / 1000)}`,
    promptTokens && `prompt of ${number(promptTokens)}, ${number(cachedTokens)} cached`,
    ENDS[finish.reason]?.(finish),
  ].filter(Boolean);
}

function Branches({ id, siblings, onBranch }) {
  if (siblings.length < 2 || !onBranch) return null;
  const at = siblings.indexOf(id);
  const step = (sign, to, label) => {
    const props = { "aria-label": label, disabled: !siblings[to] };
    return button(sign, () => onBranch(siblings[to]), props);
  };
  const place = `${at + 1}/${siblings.length}`;
  return html`<span>
    ${step("‹", at - 1, "Previous branch")}${place}${step("›", at + 1, "Next branch")}
  </span>`;
}
