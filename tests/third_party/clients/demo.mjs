/** What the demo model answers, greedily, and where it is served; demo.py for Node. */

import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../..");
export const GRPC = process.env.SIGNALBOX_ROUTER;
export const QUESTION = "What is the capital of South Korea?";
export const ANSWER = "The capital of South Korea is Seoul.";
export const [PROMPT_TOKENS, COMPLETION_TOKENS] = [38, 9];
export const BAD_TEMPERATURE = 9.0;
export const REFUSAL = "temperature: allowed: [0, 2]; given: 9.0";

/** demo_tools.py for Node. */
export const SCRIPTED_HTTP = process.env.SIGNALBOX_SCRIPTED_HTTP;
export const MODEL = "scripted";
export const TOOL = "weather";
export const CALLS_QUESTION = "How is the weather in Seoul and in Busan?";
export const WEATHER = { Seoul: "It rains in Seoul.", Busan: "The sun shines in Busan." };
export const TOLD = Object.values(WEATHER).join(" ");
export const FORM_QUESTION = "Which city has rain? Answer as a form.";
export const FORM = { city: "Seoul" };
