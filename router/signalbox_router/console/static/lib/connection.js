/** Whether the server answers, as the calls of all views find it. */

export const CONNECTED = "connected";
export const UNREACHABLE = "unreachable";

const listeners = new Set();
let state = CONNECTED;

export function setConnection(next) {
  if (next === state) return;
  state = next;
  for (const listener of listeners) listener(state);
}

/** Calls `listener` at each change; returns the function that ends this. */
export function onConnection(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
