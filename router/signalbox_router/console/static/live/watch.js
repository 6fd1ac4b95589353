/**
 * Follows the schedulers: one stream for all visible tabs, none while all are hidden.
 *
 * The tab that holds a lock streams, and passes on what comes; the others ask it for what it knows. A
 * tab that is hidden gives the lock away. Where there are no locks, as on a page by plain HTTP of
 * another host, each visible tab has a stream of its own. (A shared worker would need a script URL,
 * which the page's policy lets nothing make.)
 */

import { getKey } from "../lib/key.js";
import { OPERATIONS, RpcError, retrying, stream } from "../lib/rpc.js";
import { History } from "./history.js";

export class Watch {
  history = new History();
  /** Why there is nothing new, in words; empty if there is. */
  problem = "";
  /** Set back by the view that draws the news. */
  hasNews = false;
  #ending = null;
  #follow = () => {
    if (!document.hidden) this.#begin();
    else if (!this.history.recording) this.#rest(); // a recording would begin again
  };

  start() {
    document.addEventListener("visibilitychange", this.#follow);
    this.#follow();
  }

  end() {
    document.removeEventListener("visibilitychange", this.#follow);
    this.#rest();
  }

  /** Begins again, such as with another key. */
  restart() {
    this.#rest();
    this.#follow();
  }

  #rest() {
    this.#ending?.abort();
    this.#ending = null;
  }

  async #begin() {
    if (this.#ending) return;
    const { signal } = (this.#ending = new AbortController());
    const name = `signalbox.watch ${new URL(document.baseURI).pathname} ${await digest(getKey())}`;
    if (signal.aborted) return;
    this.history.pictures = new Map(); // what comes may begin with a difference
    if (!navigator.locks) return this.#lead(signal);
    const tabs = new BroadcastChannel(name);
    signal.addEventListener("abort", () => tabs.close());
    let leads = false;
    tabs.onmessage = ({ data }) => {
      if (!data.asks) this.#take(data);
      else if (leads) tabs.postMessage({ known: this.history.known, problem: this.problem });
    };
    tabs.postMessage({ asks: true });
    const lead = () => {
      leads = true;
      return this.#lead(signal, (news) => signal.aborted || tabs.postMessage(news));
    };
    // It ends by the signal, or at once where a browser that blocks cookies refuses locks as well.
    await navigator.locks.request(name, { signal }, lead).catch(() => signal.aborted || lead());
  }

  /** Takes what the stream, or another tab, says. */
  #take({ known, message, clockS, problem = "" }) {
    if (known) this.history.goOnFrom(known);
    if (message) this.history.add(message, clockS);
    this.problem = problem;
    this.hasNews = true;
  }

  /** Streams until the signal, an error that stays, or the end of a recording. */
  async #lead(signal, tell = () => {}) {
    const say = (news) => {
      this.#take(news);
      tell(news);
    };
    const follow = async (onSuccess) => {
      this.history.pictures = new Map();
      if (this.history.recording) this.history = new History(); // it begins again
      for await (const message of stream(OPERATIONS, "Watch", {}, { signal })) {
        onSuccess();
        say({ message, clockS: Date.now() / 1000 });
      }
      if (!this.history.recording) throw new RpcError("unavailable", "The stream has ended.");
    };
    try {
      await retrying(signal, follow, ({ message: problem }) => say({ problem }));
    } catch ({ message: problem }) {
      if (!signal.aborted) say({ problem });
    }
  }
}

/** Tabs share what they see if they have the same key, which no name tells. */
async function digest(text) {
  if (!crypto.subtle) return "";
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
