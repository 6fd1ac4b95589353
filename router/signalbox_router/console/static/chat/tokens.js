/** Tokens of an answer by their probability, with the alternatives of the one that is looked at. */

import { html, useRef, useState } from "../lib/html.js";
import { percent } from "../lib/format.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 };
const LEAST_SHOWN = 0.001;

/** JSON of the RPC leaves zeros out, and writes minus infinity as a text. */
const probability = ({ logprob = 0 }) => Math.exp(Number(logprob));
const visible = (text = "") => text.replaceAll("\n", "↵\n");

/** Shows tokens as a list in which the pointer, or the arrow keys, choose one. */
export function Tokens({ id, logprobs }) {
  const list = useRef(null);
  const [at, choose] = useState(null);
  const chosen = list.current?.children[at];
  const look = ({ target: { dataset } }) => dataset.at && choose(Number(dataset.at));
  const onKeyDown = (event) => {
    const step = STEPS[event.key];
    if (event.key === "Escape") choose(null);
    if (!step) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(logprobs.length - 1, (at ?? 0) + step)));
  };
  const leave = () => document.activeElement !== list.current && choose(null);
  return html`<div class="chat-tokens" onMouseLeave=${leave}>
    <div
      class="chat-text"
      ref=${list}
      role="listbox"
      tabindex="0"
      aria-label="Tokens; arrow keys choose one"
      aria-activedescendant=${chosen?.id}
      onMouseOver=${look}
      onClick=${look}
      onFocus=${() => choose(at ?? 0)}
      onBlur=${() => choose(null)}
      onKeyDown=${onKeyDown}
    >
      ${logprobs.map(
        ({ sampled }, index) =>
          html`<span
            role="option"
            id="${id}-${index}"
            data-at=${index}
            aria-selected=${index === at}
            style=${{ "--doubt": `${Math.round((1 - probability(sampled)) * 60)}%` }}
            >${visible(sampled.text)}</span
          >`,
      )}
    </div>
    ${chosen && html`<${Alternatives} position=${logprobs[at]} token=${chosen} />`}
  </div>`;
}

/** Shows the alternatives below their token. */
function Alternatives({ position: { sampled, top = [] }, token }) {
  const place = {
    "--left": `${token.offsetLeft}px`,
    top: `${token.offsetTop + token.offsetHeight}px`,
  };
  const isSampled = ({ tokenId }) => tokenId === sampled.tokenId;
  const shown = top.some(isSampled) ? top : [...top, sampled];
  const nameOf = ({ text, tokenId = 0 }) =>
    visible(text).replaceAll(" ", "␣") || `token ${tokenId}`;
  const shareOf = (one) => percent(Math.max(probability(one), LEAST_SHOWN));
  return html`<table role="status" style=${place}>
    ${shown.map(
      (one) =>
        html`<tr data-sampled=${isSampled(one)}>
          <th>${nameOf(one)}</th>
          <td>${probability(one) < LEAST_SHOWN && "< "}${shareOf(one)}</td>
        </tr>`,
    )}
  </table>`;
}
