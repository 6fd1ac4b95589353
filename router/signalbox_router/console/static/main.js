/** The shell: which view is shown, and what all views share. */

import { Chat } from "./chat/chat.js";
import { html, render, useEffect, useState } from "./lib/html.js";
import { startTheme } from "./lib/theme.js";
import { Live } from "./live/live.js";
import { Why } from "./why/why.js";

const VIEWS = { chat: "Chat", live: "Live", why: "Why" };

/** The view and the rest of an address such as #/why/ID. */
function placeOf(hash) {
  const [, name, rest = ""] = /^#\/(\w+)(?:\/(.*))?$/.exec(hash) ?? [null, "chat"];
  return { name: Object.hasOwn(VIEWS, name) ? name : "chat", id: decoded(rest) };
}

/** An address may be typed by hand, with a % that begins no character. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function Shell() {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const follow = () => setPlace(placeOf(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    document.title = `${VIEWS[place.name]} · Signalbox`;
  }, [place.name]);
  return html`<div class="shell">
    <header class="shell-bar">
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([name, title]) =>
            html`<a href="#/${name}" aria-current=${name === place.name ? "page" : null}>
              ${title}
            </a>`,
        )}
      </nav>
    </header>
    <main class="shell-view" id="view" tabindex="-1">
      ${place.name === "live" && html`<${Live} />`}
      ${place.name === "why" && html`<${Why} id=${place.id} />`}
      ${place.name === "chat" && html`<${Chat} />`}
    </main>
  </div>`;
}

startTheme();
render(html`<${Shell} />`, document.getElementById("app"));
