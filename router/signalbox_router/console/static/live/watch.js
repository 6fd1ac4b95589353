/**
 * Follows the schedulers: one stream for all visible tabs, none while all are hidden.
 *
 * The tab that holds a lock streams, and passes on what comes; the others ask it for what it has. A
 * tab that is hidden gives the lock away. Where there are no locks, as on a page by plain HTTP of
 * another host, each visible tab has a stream of its own. (A shared worker would need a script URL,
 * which the page's policy lets nothing make.)
 */

import { getKey } from "../lib/key.js";
import { OPERATIONS, RpcError, retrying, stream } from "../lib/rpc.js";
import { History } from "./history.js";

export class Watch {
  /** Calls `onNews` when anything has changed. */
  constructor(onNews) {
    this.history = new History();
    /** Why there is nothing new, in words; empty if there is. */
    this.problem = "";
    this._onNews = onNews;
    this._ending = null;
    this._follow = () => (document.hidden ? this._rest() : this._begin());
  }

  start() {
    document.addEventListener("visibilitychange", this._follow);
    this._follow();
  }

  stop() {
    document.removeEventListener("visibilitychange", this._follow);
    this._end();
  }

  /** Begins again, such as with another key. */
  restart() {
    this._end();
    this._follow();
  }

  _rest() {
    if (!this.history.recording) this._end(); // a recording would begin again
  }

  _end() {
    this._ending?.abort();
    this._ending = null;
  }

  async _begin() {
    if (this._ending) return;
    const { signal } = (this._ending = new AbortController());
    const name = `signalbox.watch ${new URL(document.baseURI).pathname} ${await digest(getKey())}`;
    if (signal.aborted) return;
    const tabs = navigator.locks ? new BroadcastChannel(name) : null;
    if (!tabs) return this._lead(signal, () => {});
    signal.addEventListener("abort", () => tabs.close());
    const role = { leads: false, knows: false };
    tabs.onmessage = ({ data }) => this._hear(data, role, tabs);
    tabs.postMessage({ asks: true });
    const lead = async () => {
      role.leads = true;
      await this._lead(signal, (news) => signal.aborted || tabs.postMessage(news));
    };
    await navigator.locks.request(name, { signal }, lead).catch(() => {}); // it ends by the signal
  }

  /** Takes what another tab says. */
  _hear({ asks, dump, news, problem = "" }, role, tabs) {
    if (asks && role.leads && this.history.entries.length) {
      tabs.postMessage({ dump: this.history.dump(), problem: this.problem });
    }
    if (asks || role.leads) return;
    if (dump) {
      this.history = History.from(dump);
      role.knows = true;
    } else if (!role.knows) {
      tabs.postMessage({ asks: true });
      return;
    } else if (news) {
      this.history.add(...news);
    }
    this.problem = problem;
    this._onNews();
  }

  /** Streams until the signal, an error that stays, or the end of a recording. */
  async _lead(signal, tell) {
    const say = (news, problem) => {
      this.problem = problem;
      tell({ news, problem });
      this._onNews();
    };
    const follow = async (onSuccess) => {
      if (this.history.recording) this.history = new History(); // it begins again
      for await (const message of stream(OPERATIONS, "Watch", {}, { signal })) {
        onSuccess();
        const news = [message, Date.now() / 1000];
        this.history.add(...news);
        say(news, "");
      }
      if (!this.history.recording) throw new RpcError("unavailable", "The stream has ended.");
    };
    try {
      await retrying(signal, follow, ({ message }) => say(null, message));
    } catch (error) {
      if (!signal.aborted) say(null, error.message);
    }
  }
}

/** Tabs share what they see if they have the same key, which no name tells. */
async function digest(text) {
  if (!crypto.subtle) return "";
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
