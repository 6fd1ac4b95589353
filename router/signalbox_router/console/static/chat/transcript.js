/**
 * The messages of a conversation, in groups. One that has not been near what is seen is plain text:
 * a browser takes too long for elements of 10,000 messages, and finds words in the text all the same.
 */

import { openCalls, siblingsOf } from "./conversations.js";
import { Message } from "./message.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";

const NEAR_END_PX = 40;
const GROUP = 20;

/** Shows one conversation, which is its key. */
export function Transcript({ session }) {
  const { generation, path, sought } = session;
  const { scroller, near, isAway, follow, handlers } = useScroller(sought);
  useEffect(() => void (generation && follow()), [generation]);
  const calls = useMemo(() => openCalls(path), [path]);
  const groups = useMemo(() => {
    const count = Math.ceil(path.length / GROUP);
    return Array.from({ length: count }, (_, index) => {
      const messages = path.slice(index * GROUP, (index + 1) * GROUP);
      const isShown = index >= count - 2 || messages.some(({ id }) => id === sought);
      return html`<${Group} key=${index} ...${{ session, messages, calls, isShown, near }} />`;
    });
  }, [path, generation]);
  return html`<div
    class="chat-scroller"
    tabindex="0"
    role="region"
    aria-label="Messages"
    ref=${scroller}
    ...${handlers}
  >
    <div class="chat-messages">${groups}</div>
    ${isAway && html`<button class="chat-end" onClick=${follow}>To the end</button>`}
  </div>`;
}

function Group({ session, messages, calls, isShown, near }) {
  const element = useRef();
  const [isNear, setNear] = useState(isShown);
  useEffect(() => void (isNear || near.current(element.current, () => setNear(true))), []);
  const text = useMemo(
    () => isNear || messages.map((message) => message.text).join("\n\n"),
    [isNear, messages],
  );
  if (!isNear) return html`<div class="chat-group chat-text" ref=${element}>${text}</div>`;
  return html`<div class="chat-group" ref=${element}>
    ${messages.map(
      (message) =>
        html`<${Row}
          key=${message.id}
          ...${{ session, message }}
          calls=${message.toolCalls.length ? calls : undefined}
          siblings=${siblingsOf(session.current, message)}
        />`,
    )}
  </div>`;
}

/** Begins at a message or the end, and stays there while elements grow until the user scrolls. */
function useScroller(sought) {
  const scroller = useRef();
  const near = useRef();
  const place = useRef({ sought, isFollowing: !sought, top: 0 });
  const [isAway, setAway] = useState(false);
  const settle = () => {
    if (place.current.isFollowing) scroller.current.scrollTop = scroller.current.scrollHeight;
    else document.getElementById(`chat-${place.current.sought}`)?.scrollIntoView();
  };
  const follow = () => {
    place.current.isFollowing = true;
    settle();
  };
  const onScroll = ({ target: { scrollTop, scrollHeight, clientHeight } }) => {
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    const isHigher = scrollTop < place.current.top;
    const isFollowing = isAtEnd || (place.current.isFollowing && !isHigher);
    Object.assign(place.current, { isFollowing, top: scrollTop });
    setAway(!isFollowing);
  };
  const leave = () => (place.current.sought = null);
  useLayoutEffect(() => {
    near.current = nearness(scroller.current);
    const resized = new ResizeObserver(settle);
    resized.observe(scroller.current.firstChild);
    return () => resized.disconnect();
  }, []);
  const handlers = { onScroll, onWheel: leave, onPointerDown: leave, onKeyDown: leave };
  return { scroller, near, isAway, follow, handlers };
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
function Row({ session, message, siblings, calls }) {
  const generation = session.running.get(message.id);
  const [, show] = useState(null);
  useEffect(() => generation?.onChange(show), [generation]);
  const shown = generation?.message ?? message;
  const regenerate =
    message.role === "assistant" && !generation ? () => session.regenerate(message) : undefined;
  return useMemo(
    () =>
      html`<div id="chat-${message.id}">
        <${Message}
          message=${shown}
          siblings=${siblings}
          openCalls=${calls}
          isStreaming=${Boolean(generation)}
          onEdit=${(one, text) => session.edit(one, text)}
          onRegenerate=${regenerate}
          onBranch=${(id) => session.choose(id)}
          onToolResult=${(call, text) => session.addResult(call.id, text)}
        />
        ${
          regenerate &&
          message.error &&
          html`<button class="chat-again" onClick=${regenerate}>Try again</button>`
        }
      </div>`,
    [shown, generation, siblings, calls],
  );
}
