/** Hooks that views share. */

import { useEffect, useReducer, useState } from "./html.js";

/** Calls a listener for each event of the window while a component is shown. */
export function useWindowEvent(type, listener) {
  useEffect(() => {
    addEventListener(type, listener);
    return () => removeEventListener(type, listener);
  });
}

/** Returns a count and a function that raises it, which renders again. */
export const useCounter = () => useReducer((count) => count + 1, 0);

/** Returns the newest answer of `ask(signal)`, which is called `ms` after the last change of `keys`. */
export function useAnswer(ask, ms, keys) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const timer = setTimeout(async () => {
      const found = await ask(signal);
      if (!signal.aborted) setAnswer(found);
    }, ms);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, keys);
  return answer;
}
