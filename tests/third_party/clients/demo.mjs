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
