/** Fields of ChatRequest that the Settings edit, by the groups in which they show them. */

export const GROUPS = {
  Sampling: ["temperature", "topP", "topK", "minP", "typicalP", "seed", "logprobs"],
  Penalties: ["presencePenalty", "frequencyPenalty", "repetitionPenalty"],
  "Length and end": ["maxTokens", "minTokens", "stop", "ignoreEos"],
  Thinking: ["effort", "budget"],
};

export const partOf = (name) => (GROUPS.Thinking.includes(name) ? "thinking" : "samplingParams");

export const isText = (value) => typeof value === "string";
const isShown = (value) =>
  Array.isArray(value) ? [...value].every(isText) : /string|number|boolean/.test(typeof value);
const isTool = (one) => isText((one?.function ?? one)?.name);

/** Returns of the params of a file those that the Settings can show: others could not be mended there. */
export function knownParams({ tools, ...parts }) {
  const known = {};
  for (const name of Object.values(GROUPS).flat()) {
    const part = partOf(name);
    const value = parts[part]?.[name];
    if (isShown(value)) known[part] = { ...known[part], [name]: value };
  }
  const { jsonSchema } = parts.samplingParams?.structuredOutput ?? {};
  if (isText(jsonSchema))
    known.samplingParams = { ...known.samplingParams, structuredOutput: { jsonSchema } };
  if (tools && [...[].concat(tools)].every(isTool)) known.tools = tools;
  return known;
}
