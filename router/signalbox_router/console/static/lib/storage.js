/** What a browser keeps. One that keeps nothing, as with all cookies blocked, keeps it for this page. */

class Forgetful {
  #items = new Map();

  getItem(name) {
    return this.#items.get(name) ?? null;
  }

  setItem(name, value) {
    this.#items.set(name, value);
  }

  removeItem(name) {
    this.#items.delete(name);
  }
}

function kept(name) {
  try {
    return globalThis[name];
  } catch {
    return new Forgetful();
  }
}

export const ofTab = kept("sessionStorage");
export const ofBrowser = kept("localStorage");
