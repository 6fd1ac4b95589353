/** Requests of the last minute, to choose one: those on workers, and those seen to end. */

import { html, useEffect, useState } from "../lib/html.js";
import { requestsOf } from "../live/picture.js";
import { Watch } from "../live/watch.js";

const NUM_SHOWN = 50;
const COLUMNS = ["request", "state", "prompt", "output"];

export function Latest() {
  const { rows, problem } = useLatest();
  return html`<section class="why-latest">
    <p class="why-muted">
      Each answer has its request's id; the field takes its first characters, too.
      ${!rows.length && " Requests that run while this page is open are listed here."}
    </p>
    ${problem && html`<p class="why-problem">${problem}</p>`}
    ${
      rows.length > 0 &&
      html`<table class="why-table">
        <caption class="visually-hidden">
          Requests that run or have just ended, the newest first
        </caption>
        <thead>
          <tr>
            ${COLUMNS.map((name) => html`<th scope="col">${name}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            ({ place, number, state, numPromptTokens, numOutput }) =>
              html`<tr key=${place}>
                <td><a href=${`#/why/${place}`}>${number}</a></td>
                <td>${state}</td>
                <td>${numPromptTokens}</td>
                <td>${numOutput}</td>
              </tr>`,
          )}
        </tbody>
      </table>`
    }
  </section>`;
}

/** Follows the schedulers; a change is shown with the next frame of the screen. */
function useLatest() {
  const [shown, show] = useState({ rows: [], problem: "" });
  useEffect(() => {
    const seen = new Map();
    let frame = 0;
    const update = () => {
      frame = 0;
      for (const one of seen.values()) one.state = "ended";
      for (const [scheduler, { workers }] of watch.history.pictures) {
        for (const worker of workers.values()) {
          for (const [number, one] of requestsOf(worker)) {
            const place = `${number}@${encodeURIComponent(scheduler)}`;
            seen.set(place, { ...one, place, number });
          }
        }
      }
      const newest = [...seen.values()].reverse().slice(0, NUM_SHOWN);
      show({ rows: newest, problem: watch.problem });
    };
    const watch = new Watch(() => (frame ||= requestAnimationFrame(update)));
    watch.start();
    return () => {
      cancelAnimationFrame(frame);
      watch.stop();
    };
  }, []);
  return shown;
}
