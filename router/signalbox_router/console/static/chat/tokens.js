/** Tokens of an answer by their probability, with the alternatives of the one that is looked at. */

import { html, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { percent } from "../lib/format.js";

const KEYS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 };
const LEAST_SHOWN = 0.001;

/** JSON of the RPC leaves zeros out, and writes minus infinity as a text. */
const probability = ({ logprob = 0 }) => Math.exp(Number(logprob));
const visible = (text = "") => text.replaceAll("\n", "↵\n");
const named = ({ text = "", tokenId = 0 }) =>
  visible(text).replaceAll(" ", "␣") || `token ${tokenId}`;

/** Shows tokens as a list in which the pointer, or the arrow keys, choose one. */
export function Tokens({ id, logprobs }) {
  const list = useRef(null);
  const [at, setAt] = useState(-1);
  const tokens = useMemo(() => logprobs.map((one, i) => tokenOf(one, i, id)), [logprobs]);
  const look = (event) => setAt(Number(event.target.dataset.at ?? at));
  const onKeyDown = (event) => {
    const step = KEYS[event.key];
    if (event.key === "Escape") setAt(-1);
    if (!step) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(logprobs.length - 1, at + step)));
  };
  const leave = () => document.activeElement !== list.current && setAt(-1);
  return html`<div class="chat-tokens" onMouseLeave=${leave}>
    <div
      ref=${list}
      role="listbox"
      tabindex="0"
      aria-label="Tokens; arrow keys choose one"
      aria-activedescendant=${at < 0 ? null : `${id}-${at}`}
      onMouseOver=${look}
      onClick=${look}
      onFocus=${() => setAt(Math.max(0, at))}
      onBlur=${() => setAt(-1)}
      onKeyDown=${onKeyDown}
    >
      ${tokens}
    </div>
    ${logprobs[at] && html`<${Alternatives} position=${logprobs[at]} list=${list} at=${at} />`}
  </div>`;
}

function tokenOf({ sampled }, at, id) {
  const share = probability(sampled);
  return html`<span
    role="option"
    id=${`${id}-${at}`}
    data-at=${at}
    style=${{ "--doubt": `${Math.round((1 - share) * 60)}%` }}
    >${visible(sampled.text)}</span
  >`;
}

function shareOf(token) {
  const share = probability(token);
  return share < LEAST_SHOWN ? `< ${percent(LEAST_SHOWN)}` : percent(share);
}

/** Shows the alternatives below their token. */
function Alternatives({ position: { sampled, top = [] }, list, at }) {
  const popover = useRef(null);
  useLayoutEffect(() => {
    const token = list.current.children[at];
    token.setAttribute("aria-selected", "true");
    const room = list.current.clientWidth - popover.current.offsetWidth;
    popover.current.style.left = `${Math.max(0, Math.min(token.offsetLeft, room))}px`;
    popover.current.style.top = `${token.offsetTop + token.offsetHeight}px`;
    return () => token.removeAttribute("aria-selected");
  });
  const isSampled = ({ tokenId }) => tokenId === sampled.tokenId;
  const shown = top.some(isSampled) ? top : [...top, sampled];
  return html`<table ref=${popover} role="status" class="chat-alternatives">
    ${shown.map(
      (one) =>
        html`<tr class=${isSampled(one) ? "chat-sampled" : ""}>
          <th>${named(one)}</th>
          <td>${shareOf(one)}</td>
        </tr>`,
    )}
  </table>`;
}
