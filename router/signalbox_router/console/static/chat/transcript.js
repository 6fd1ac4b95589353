/** The messages of a conversation; of a long one those around what is looked at have elements. */

import { openCalls, siblingsOf } from "./conversations.js";
import { Message } from "./message.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";

const NEAR_END_PX = 40;
const PAGE = 40;

/** Shows one conversation, which is its key. */
export function Transcript({ session }) {
  const { generation, path, sought } = session;
  const end = { first: path.length - PAGE, last: Infinity };
  const at = path.findIndex(({ id }) => id === sought);
  const [shown, setShown] = useState(at < 0 ? end : { first: at - PAGE, last: at + PAGE });
  const first = Math.max(0, Math.min(shown.first, end.first)); // another branch may be shorter
  const { scroller, isAway, follow, onScroll } = useScroller(sought, first);
  const toEnd = () => {
    setShown(end);
    follow();
  };
  useEffect(() => void (generation && toEnd()), [generation]);
  const messages = useMemo(() => {
    const calls = openCalls(path);
    return path.slice(first, shown.last).map((message) => {
      const siblings = siblingsOf(session.current, message);
      return html`<${Message} key=${message.id} ...${{ session, message, siblings, calls }} />`;
    });
  }, [path, generation, first, shown.last]);
  const hasLater = shown.last < path.length;
  return html`<div
    class="chat-scroller"
    tabindex="0"
    role="region"
    aria-label="Messages"
    ref=${scroller}
    onScroll=${onScroll}
  >
    <div class="chat-column">
      ${first > 0 && html`<${Edge} onNear=${() => setShown({ ...shown, first: first - PAGE })} />`}
      ${messages}
      ${hasLater && html`<${Edge} onNear=${() => setShown({ ...shown, last: shown.last + PAGE })} />`}
    </div>
    ${(isAway || hasLater) && html`<button onClick=${toEnd}>To the end</button>`}
  </div>`;
}

/** Where the messages that have elements end; asks for more when it comes near what is seen. */
function Edge({ onNear }) {
  const element = useRef();
  useEffect(() => {
    const root = element.current.closest(".chat-scroller");
    const observer = new IntersectionObserver(
      ([{ isIntersecting }]) => isIntersecting && onNear(),
      { root, rootMargin: "100%" },
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  });
  return html`<div ref=${element} />`;
}

/** Begins at a message or the end, and stays at the end until the user scrolls away from it. */
function useScroller(sought, first) {
  const scroller = useRef();
  const place = useRef({ isFollowing: !sought, top: 0, height: 0 });
  const [isAway, setAway] = useState(false);
  const follow = () => {
    place.current.isFollowing = true;
    scroller.current.scrollTop = scroller.current.scrollHeight;
  };
  const onScroll = ({ target: { scrollTop: top, scrollHeight: height, clientHeight } }) => {
    const isHigher = top < place.current.top;
    const isAtEnd = height - top - clientHeight < NEAR_END_PX;
    const isFollowing = isAtEnd || (place.current.isFollowing && !isHigher);
    place.current = { isFollowing, top, height };
    setAway(!isFollowing);
  };
  useLayoutEffect(() => {
    const { isFollowing, top, height } = place.current;
    if (isFollowing || !height) return;
    scroller.current.scrollTop = top + scroller.current.scrollHeight - height; // as before the page
  }, [first]);
  useLayoutEffect(() => {
    document.getElementById(`chat-${sought}`)?.scrollIntoView();
    const resized = new ResizeObserver(() => place.current.isFollowing && follow());
    resized.observe(scroller.current.firstChild);
    return () => resized.disconnect();
  }, []);
  return { scroller, isAway, follow, onScroll };
}
