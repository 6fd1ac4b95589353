/** Where the demo model is served, and what it answers; demo.py for Node. */

import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../..");
export const GRPC = process.env.SIGNALBOX_ROUTER;
export const HTTP = process.env.SIGNALBOX_HTTP;
export * from "./demo_values.mjs";

/** Returns the bytes of the newest released descriptor of our protos. */
export function releasedDescriptor() {
  const folder = path.join(ROOT, "tests/protos/released");
  const newest = readdirSync(folder).filter((name) => name.endsWith(".binpb")).sort().at(-1);
  return readFileSync(path.join(folder, newest));
}

/** demo_tools.py for Node. */
export const SCRIPTED_HTTP = process.env.SIGNALBOX_SCRIPTED_HTTP;
export const MODEL = "scripted";
export const TOOL = "weather";
export const CALLS_QUESTION = "How is the weather in Seoul and in Busan?";
export const WEATHER = { Seoul: "It rains in Seoul.", Busan: "The sun shines in Busan." };
export const TOLD = Object.values(WEATHER).join(" ");
export const FORM_QUESTION = "Which city has rain? Answer as a form.";
export const FORM = { city: "Seoul" };
