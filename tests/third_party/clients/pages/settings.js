/** What both pages need of their settings. */

import { ANSWER, BAD_TEMPERATURE, QUESTION } from "../demo_values.mjs";
import { chatOf, serviceOf } from "../inference.mjs";

export { ANSWER };

/** Returns the service, and its requests: one that ends, one that is refused and one that lasts. */
export function prepared({ descriptor }) {
  const service = serviceOf(Uint8Array.from(atob(descriptor), (char) => char.charCodeAt(0)));
  const chat = (params) => chatOf(service, QUESTION, params);
  return {
    service,
    good: chat({ temperature: 0, maxTokens: 24 }),
    bad: chat({ temperature: BAD_TEMPERATURE }),
    long: chat({ temperature: 0, maxTokens: 1500, ignoreEos: true }),
  };
}

/** Waits until as many requests run in the router, and returns how many do. */
export async function untilLive(count, baseUrl) {
  let found;
  for (let i = 0; i < 200 && found !== count; i += 1) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    found = (await (await fetch(`${baseUrl}/load`)).json()).server_load;
  }
  return found;
}
