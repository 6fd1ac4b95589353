/** Whether the server answers, as the calls of all views find it. */

const listeners = new Set();
let isThere = true;

/** Takes what a call has found. */
export function setThere(is) {
  const isLost = isThere && !is;
  isThere = is;
  if (isLost) for (const listener of listeners) listener();
}

/** Calls `listener` each time that the server ceases to answer; returns the function that ends this. */
export function onLost(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
