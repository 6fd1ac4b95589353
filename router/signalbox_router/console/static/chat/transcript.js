/** The messages of a conversation. Those that have not been near what is seen are plain text. */

import { openCalls, siblingsOf } from "./conversations.js";
import { Message } from "./message.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";

const NEAR_END_PX = 40;
const NUM_AT_END = 20;

/** Shows one conversation, which is its key. */
export function Transcript({ session }) {
  const { current, generation, path } = session;
  const { scroller, near, isAway, follow, onScroll } = useScroller(session.sought);
  useEffect(() => void (generation && follow()), [generation]);
  const rows = useMemo(() => {
    const calls = openCalls(path);
    return path.map(
      (message, index) =>
        html`<${Row}
          key=${message.id}
          ...${{ session, message, near, calls: message.toolCalls.length ? calls : undefined }}
          siblings=${siblingsOf(current, message)}
          isAtEnd=${index >= path.length - NUM_AT_END}
        />`,
    );
  }, [path, generation]);
  return html`<div class="chat-scroller" tabindex="0" ref=${scroller} onScroll=${onScroll}>
    <ol class="chat-messages" aria-label="Messages">
      ${rows}
    </ol>
    ${isAway && html`<button class="chat-end" onClick=${follow}>To the end</button>`}
  </div>`;
}

/** Begins at a message or the end, and stays at the end while that grows. */
function useScroller(sought) {
  const scroller = useRef();
  const near = useRef();
  const place = useRef({ isFollowing: !sought, top: 0 });
  const [isAway, setAway] = useState(false);
  const toEnd = () => (scroller.current.scrollTop = scroller.current.scrollHeight);
  const follow = () => {
    place.current.isFollowing = true;
    toEnd();
  };
  const onScroll = ({ target: { scrollTop, scrollHeight, clientHeight } }) => {
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    const isHigher = scrollTop < place.current.top;
    place.current = {
      isFollowing: isAtEnd || (place.current.isFollowing && !isHigher),
      top: scrollTop,
    };
    setAway(!place.current.isFollowing);
  };
  useLayoutEffect(() => {
    near.current = nearness(scroller.current);
    document.getElementById(`chat-${sought}`)?.scrollIntoView({ block: "center" });
    const resized = new ResizeObserver(() => place.current.isFollowing && toEnd());
    resized.observe(scroller.current.firstChild);
    return () => resized.disconnect();
  }, []);
  return { scroller, near, isAway, follow, onScroll };
}

/** Returns a function that calls another once, when an element comes near what is seen. */
function nearness(root) {
  const calls = new WeakMap();
  const seen = ({ target }) => {
    calls.get(target)();
    observer.unobserve(target);
  };
  const observer = new IntersectionObserver(
    (entries) => entries.filter(({ isIntersecting }) => isIntersecting).forEach(seen),
    { root, rootMargin: "100%" },
  );
  return (element, onNear) => {
    calls.set(element, onNear);
    observer.observe(element);
  };
}

/** Renders again by itself while its answer is written. */
function Row({ session, message, siblings, calls, near, isAtEnd }) {
  const item = useRef();
  const generation = session.running.get(message.id);
  const [isNear, setNear] = useState(isAtEnd);
  const [, show] = useState(null);
  useEffect(() => void (isNear || near.current(item.current, () => setNear(true))), []);
  useEffect(() => generation?.onChange(show), [generation]);
  const shown = generation?.message ?? message;
  const isOver = message.role === "assistant" && !generation;
  const content = useMemo(() => {
    if (!isNear) return html`<div class="chat-message chat-text">${message.text}</div>`;
    return html`<${Message}
        message=${shown}
        siblings=${siblings}
        openCalls=${calls}
        isStreaming=${Boolean(generation)}
        onEdit=${(one, text) => session.edit(one, text)}
        onRegenerate=${isOver && ((one) => session.regenerate(one))}
        onBranch=${(id) => session.choose(id)}
        onToolResult=${(call, text) => session.addResult(call.id, text)}
      />
      ${
        isOver &&
        message.error &&
        html`<button class="chat-again" onClick=${() => session.regenerate(message)}>
          Try again
        </button>`
      }`;
  }, [shown, generation, siblings, calls, isNear]);
  return html`<li id="chat-${message.id}" ref=${item}>${content}</li>`;
}
