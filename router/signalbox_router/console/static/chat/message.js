/** One message of a conversation, with what is known of it and what can be done with it. */

import { html, quietButton, useEffect, useState } from "../lib/html.js";
import { counted, duration, number } from "../lib/format.js";
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

/**
 * Shows a message, and renders again by itself while it is written.
 *
 * @param siblings ids of the message and its alternatives, oldest first.
 * @param calls calls of tools that have no result yet.
 */
export function Message({ session, message: stored, siblings, calls }) {
  const generation = session.running.get(stored.id);
  const [, show] = useState(null);
  const [isEdited, setEdited] = useState(false);
  const [showsTokens, setShowsTokens] = useState(false);
  useEffect(() => void (generation && (generation.onChange = show)), [generation]);
  const message = generation?.message ?? stored;
  const { id, parent, role, text, error, reasoning, toolCalls, toolCallId, model } = message;
  const author = AUTHORS[role] ?? (model || "Assistant");
  const edit = (changed) => {
    setEdited(false);
    session.say({ parent, role, toolCallId, model, text: changed });
  };
  const toggles = { isEdited, setEdited, showsTokens, setShowsTokens };
  return html`<article class="chat-message chat-${role}" aria-label=${author} id="chat-${id}">
    <header class="muted"><strong>${author}</strong></header>
    ${reasoning && html`<${Reasoning} message=${message} />`}
    ${
      isEdited
        ? html`<${Entry} label="Text of the message" text=${text} verb=${role === "user" ? "Send" : "Save"} onSend=${edit}>
            ${quietButton("Cancel", () => setEdited(false))}
          </${Entry}>`
        : html`<${Body} message=${message} showsTokens=${showsTokens} />`
    }
    ${toolCalls.map((call) => {
      const isOpen = !generation && calls.some((one) => one.id === call.id);
      const onResult = (result) => session.say({ role: "tool", toolCallId: call.id, text: result });
      return html`<${Call} key=${call.id} call=${call} onResult=${isOpen && onResult} />`;
    })}
    ${error && html`<p class="bad" role="alert" dir="auto">${error}</p>`}
    ${!generation && html`<${Footer} ...${{ session, message, siblings, ...toggles }} />`}
  </article>`;
}

/** What is known of a whole message, and what can be done with it. */
function Footer({ session, message, siblings, isEdited, setEdited, showsTokens, setShowsTokens }) {
  const { id, role, text, error, logprobs, requestId } = message;
  const toggle = (label, is, set) => quietButton(label, () => set(!is), { "aria-pressed": is });
  const regenerate = () => session.regenerate(message);
  return html`<footer class="muted">
    <${Branches} id=${id} siblings=${siblings} onBranch=${(one) => session.choose(one)} />
    ${text && html`<${Copy} text=${text} what="the message" />`}
    ${toggle("Edit", isEdited, setEdited)}
    ${role === "assistant" && quietButton(error ? "Try again" : "Regenerate", regenerate)}
    ${logprobs.length > 0 && toggle("Probabilities", showsTokens, setShowsTokens)}
    ${requestId && html`<a href="#/why/${encodeURIComponent(requestId)}">Why</a>`}
    <small>${factsOf(message).join(" · ")}</small>
  </footer>`;
}

function Body({ message: { id, role, text, logprobs }, showsTokens }) {
  if (showsTokens) return html`<${Tokens} id=${id} logprobs=${logprobs} />`;
  if (role === "assistant") return html`<${Markdown} text=${text} />`;
  return html`<div class="chat-text" dir="auto">${role === "tool" ? pretty(text) : text}</div>`;
}

function Reasoning({ message: { reasoning, usage } }) {
  const count = usage?.reasoningTokens;
  return html`<details class="muted">
    <summary>Reasoning${count ? `, ${counted(count, "token")}` : ""}</summary>
    <${Markdown} text=${reasoning} />
  </details>`;
}

const focus = (field) => field?.focus();

/** A text to type; Enter with Ctrl sends it, too. */
function Entry({ label, text = "", verb = "Send", onSend, children }) {
  const send = (event) => {
    event.preventDefault();
    onSend(event.target.elements[0].value);
  };
  const onKeyDown = ({ key, ctrlKey, metaKey, target }) =>
    key === "Enter" && (ctrlKey || metaKey) && target.form.requestSubmit();
  const labels = { "aria-label": label, placeholder: label };
  return html`<form onSubmit=${send}>
    <textarea
      ...${labels}
      dir="auto"
      defaultValue=${text}
      ref=${text && focus}
      ...${{ onKeyDown }}
    />
    <button class="primary">${verb}</button>${children}
  </form>`;
}

/** Returns JSON on several lines; another text as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Call({ call, onResult }) {
  return html`<section class="chat-box">
    <header>calls <code>${call.name}</code></header>
    <pre tabindex="0">${pretty(call.arguments)}</pre>
    ${onResult && html`<${Entry} label="Result of ${call.name}" onSend=${onResult} />`}
  </section>`;
}

/** Returns what is known of an answer, in words. */
function factsOf({ usage = {}, timing = {}, finish = {} }) {
  const { completionTokens: count, promptTokens, cachedTokens = 0, speculation } = usage;
  return [
    count && counted(count, "token"),
    timing.tokensPerS && `${number(timing.tokensPerS)} tokens/s`,
    timing.firstTokenMs && `first token after ${duration(timing.firstTokenMs / 1000)}`,
    promptTokens && `prompt of ${number(promptTokens)}, ${number(cachedTokens)} cached`,
    speculation &&
      `${number(speculation.numAccepted ?? 0)} of ${counted(speculation.numDrafts, "draft")} kept`,
    ENDS[finish.reason]?.(finish),
  ].filter(Boolean);
}

function Branches({ id, siblings, onBranch }) {
  if (siblings.length < 2) return null;
  const at = siblings.indexOf(id);
  const step = (sign, to, label) =>
    quietButton(sign, () => onBranch(siblings[to]), {
      "aria-label": label,
      disabled: !siblings[to],
    });
  return html`<span>
    ${step("‹", at - 1, "Previous branch")}${`${at + 1}/${siblings.length}`}
    ${step("›", at + 1, "Next branch")}
  </span>`;
}
