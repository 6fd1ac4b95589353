/** One message of a conversation, with what is known of it and what can be done with it. */

import { html, useState } from "../lib/html.js";
import { duration, number } from "../lib/format.js";
import { Copy, Markdown } from "./markdown.js";
import { Tokens } from "./tokens.js";

const AUTHORS = { system: "System", user: "You", tool: "Result of a tool" };
const ENDS = {
  FINISH_REASON_LENGTH: () => "cut at max_tokens or at the window's end",
  FINISH_REASON_STOP_STRING: ({ stop }) => `ended at the stop string ${JSON.stringify(stop)}`,
  FINISH_REASON_STOP_TOKEN: ({ stopTokenId }) => `ended at the stop token ${stopTokenId ?? 0}`,
  FINISH_REASON_ERROR: ({ errorMessage }) => `failed: ${errorMessage}`,
  FINISH_REASON_TOOL_CALLS: () => "waits for the results of tools",
  STOPPED: () => "stopped by you",
};

/**
 * Shows a message.
 *
 * @param siblings ids of the message and its alternatives, oldest first.
 * @param openCalls calls of the message that have no result yet.
 * @param onEdit called with the message and its new text; `onRegenerate` with the message;
 *   `onBranch` with the sibling's id; `onToolResult` with a call and the text of its result. What is
 *   not given cannot be done.
 */
export function Message({ message, siblings = [], isStreaming = false, ...actions }) {
  const { role, text, reasoning, toolCalls = [], error, model } = message;
  const [isEdited, setEdited] = useState(false);
  const [showsTokens, setShowsTokens] = useState(false);
  const { onEdit, onToolResult, openCalls = onToolResult ? toolCalls : [] } = actions;
  const author = AUTHORS[role] ?? (model || "Assistant");
  const save = (changed) => {
    setEdited(false);
    onEdit(message, changed);
  };
  return html`<article
    class="chat-message chat-${role}"
    aria-label=${author}
    aria-busy=${isStreaming}
  >
    <header><strong>${author}</strong></header>
    ${reasoning && html`<${Reasoning} message=${message} isStreaming=${isStreaming && !text} />`}
    ${
      isEdited
        ? html`<${Editor} text=${text} onSave=${save} onCancel=${() => setEdited(false)} />`
        : html`<${Body} message=${message} showsTokens=${showsTokens} />`
    }
    ${toolCalls.map((call) => {
      const isOpen = onToolResult && openCalls.some(({ id }) => id === call.id);
      return html`<${Call} key=${call.id} call=${call} onResult=${isOpen && onToolResult} />`;
    })}
    ${error && html`<p class="chat-error" role="alert" dir="auto">${error}</p>`}
    ${
      !isStreaming &&
      html`<${Footer}
        ...${{ message, siblings, showsTokens, setShowsTokens, ...actions }}
        onEdit=${onEdit && !isEdited && (() => setEdited(true))}
      />`
    }
  </article>`;
}

function Body({ message: { id, role, text, logprobs }, showsTokens }) {
  if (showsTokens) return html`<${Tokens} id=${id} logprobs=${logprobs} />`;
  if (role === "assistant") return html`<${Markdown} text=${text} />`;
  return html`<div class="chat-text" dir="auto">${role === "tool" ? pretty(text) : text}</div>`;
}

function Reasoning({ message: { reasoning, usage }, isStreaming }) {
  const count = usage?.reasoningTokens;
  return html`<details class="chat-reasoning">
    <summary>Reasoning${isStreaming ? "…" : count ? `, ${number(count)} tokens` : ""}</summary>
    <${Markdown} text=${reasoning} />
  </details>`;
}

function Editor({ text, onSave, onCancel }) {
  const [draft, setDraft] = useState(text);
  const onKeyDown = (event) => {
    if (event.key === "Escape") onCancel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onSave(draft);
  };
  return html`<div class="chat-editor">
    <textarea
      aria-label="Text of the message"
      dir="auto"
      rows=${Math.min(20, draft.split("\n").length + 2)}
      value=${draft}
      ref=${(field) => field && document.activeElement !== field && field.focus()}
      onInput=${(event) => setDraft(event.target.value)}
      onKeyDown=${onKeyDown}
    />
    <button type="button" class="primary" onClick=${() => onSave(draft)}>Save as a branch</button>
    <button type="button" onClick=${onCancel}>Cancel</button>
  </div>`;
}

/** Returns JSON on several lines, with its numbers as they were written; another text as it is. */
function pretty(text) {
  const asWritten = (key, value, context) =>
    typeof value === "number" && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  try {
    return JSON.stringify(JSON.parse(text, asWritten), null, 2);
  } catch {
    return text;
  }
}

function Call({ call, onResult }) {
  const [result, setResult] = useState("");
  const send = (event) => {
    event.preventDefault();
    onResult(call, result);
  };
  return html`<section class="chat-call" aria-label="Call of ${call.name}">
    <div>calls <code>${call.name}</code></div>
    <pre tabindex="0">${pretty(call.arguments)}</pre>
    ${
      onResult &&
      html`<form onSubmit=${send}>
        <textarea
          class="code"
          aria-label="Result of ${call.name}"
          placeholder="Result of ${call.name}, as the model reads it"
          value=${result}
          onInput=${(event) => setResult(event.target.value)}
        />
        <button class="primary">Send the result</button>
      </form>`
    }
  </section>`;
}

/** Returns what is known of an answer, in words. */
function facts({ usage, timing, finish }) {
  const { completionTokens: tokens, promptTokens, cachedTokens = 0 } = usage ?? {};
  return [
    tokens && `${number(tokens)} ${tokens === 1 ? "token" : "tokens"}`,
    timing?.tokensPerS && `${number(timing.tokensPerS)} tokens/s`,
    timing?.firstTokenMs && `first token after ${duration(timing.firstTokenMs / 1000)}`,
    promptTokens && `prompt ${number(promptTokens)}, of which ${number(cachedTokens)} cached`,
    finish && ENDS[finish.reason]?.(finish),
  ].filter(Boolean);
}

function Footer({ message, siblings, showsTokens, setShowsTokens, ...actions }) {
  const { onEdit, onRegenerate } = actions;
  const button = (label, onClick, props) =>
    html`<button type="button" class="quiet" ...${props} onClick=${onClick}>${label}</button>`;
  const toggle = () => setShowsTokens(!showsTokens);
  return html`<footer>
    <${Branches} id=${message.id} siblings=${siblings} onBranch=${actions.onBranch} />
    ${message.text && html`<${Copy} text=${message.text} what="the message" />`}
    ${onEdit && button("Edit", onEdit)}
    ${onRegenerate && button("Regenerate", () => onRegenerate(message))}
    ${
      message.logprobs?.length > 0 &&
      button("Probabilities", toggle, { "aria-pressed": `${showsTokens}` })
    }
    <small>${facts(message).join(" · ")}</small>
  </footer>`;
}

function Branches({ id, siblings, onBranch }) {
  if (siblings.length < 2 || !onBranch) return null;
  const at = siblings.indexOf(id);
  const step = (sign, by, label) =>
    html`<button
      type="button"
      class="quiet"
      aria-label=${label}
      disabled=${!siblings[at + by]}
      onClick=${() => onBranch(siblings[at + by])}
    >
      ${sign}
    </button>`;
  return html`<span class="chat-branches">
    ${step("‹", -1, "Previous branch")}${`${at + 1}/${siblings.length}`}
    ${step("›", 1, "Next branch")}
  </span>`;
}
