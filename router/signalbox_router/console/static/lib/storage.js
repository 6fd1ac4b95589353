/** What a browser keeps. One that keeps nothing, as with all cookies blocked, keeps it for this page. */

function kept(name) {
  try {
    return globalThis[name];
  } catch {
    const items = new Map();
    return {
      getItem: (item) => items.get(item) ?? null,
      setItem: (item, value) => items.set(item, value),
      removeItem: (item) => items.delete(item),
    };
  }
}

export const ofTab = kept("sessionStorage");
export const ofBrowser = kept("localStorage");
