/** What the demo model answers, greedily; demo.py for JavaScript, also in pages. */

export const SERVED = "SmolLM2-135M-Instruct";
export const QUESTION = "What is the capital of South Korea?";
export const ANSWER = "The capital of South Korea is Seoul.";
export const [PROMPT_TOKENS, COMPLETION_TOKENS] = [38, 9];
export const BAD_TEMPERATURE = 9.0;
export const REFUSAL = "temperature: allowed: [0, 2]; given: 9.0";
