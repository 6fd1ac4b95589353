/** What a request asks for besides its messages: sampling, structure, tools and thinking. */

import { html, useEffect, useState } from "../lib/html.js";

/** Fields of ChatRequest, and the names by which the HTTP API describes some of them. */
const GROUPS = {
  Sampling: ["temperature", "topP", "topK", "minP", "typicalP", "seed", "logprobs"],
  Penalties: ["presencePenalty", "frequencyPenalty", "repetitionPenalty"],
  "Length and end": ["maxTokens", "minTokens", "stop", "ignoreEos"],
  Thinking: ["effort", "budget"],
};
const DESCRIBED_AS = {
  logprobs: "top_logprobs",
  effort: "reasoning_effort",
  budget: "thinking_token_budget",
};
const MODES = { "": "if the model decides so", NONE: "never", REQUIRED: "at least one" };
const MODE = "TOOL_CHOICE_MODE_";

const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

let described = null;

/** Returns what the server says of the fields of a chat, by name: their types, ranges and defaults. */
function describe() {
  described ??= fetch(new URL("openapi.json", document.baseURI))
    .then((answer) => answer.json())
    .then(({ components }) => components.schemas.ChatBody.properties)
    .catch(() => {
      described = null;
      return {};
    });
  return described;
}

/** Returns a copy of an object with a field set; undefined removes it, and an object without fields. */
function withField(object, name, value) {
  const { [name]: _, ...rest } = object ?? {};
  const changed = value === undefined ? rest : { ...rest, [name]: value };
  return Object.keys(changed).length ? changed : undefined;
}

/**
 * Edits `value`: fields of ChatRequest in proto3 JSON, `{samplingParams, tools, toolChoice, thinking}`.
 *
 * @param model the answer of GetModel, whose defaults are shown where nothing is set.
 * @param violations those of the BadRequest with which the server refused the last request.
 */
export function Parameters({ value, onChange, model, violations = [] }) {
  const [about, setAbout] = useState(null);
  useEffect(() => void describe().then(setAbout), []);
  const set = (name, changed) => onChange(withField(value, name, changed) ?? {});
  const faultOf = (path) =>
    violations.find(({ field }) => field === path || /^[.[]/.test(field.replace(path, "")))
      ?.description;
  const fieldOf = (name) => {
    const parent = GROUPS.Thinking.includes(name) ? "thinking" : "samplingParams";
    return html`<${Field}
      key=${name}
      name=${snake(name)}
      about=${about[DESCRIBED_AS[name] ?? snake(name)]}
      standard=${model?.defaultSamplingParams?.[name]}
      fault=${faultOf(`${snake(parent)}.${snake(name)}`)}
      value=${value[parent]?.[name]}
      onChange=${(changed) => set(parent, withField(value[parent], name, changed))}
    />`;
  };
  const structure = value.samplingParams?.structuredOutput;
  const setSchema = (jsonSchema) => {
    const changed = jsonSchema && { jsonSchema };
    set("samplingParams", withField(value.samplingParams, "structuredOutput", changed));
  };
  return html`<form class="chat-parameters" onSubmit=${(event) => event.preventDefault()}>
    ${
      about &&
      Object.entries(GROUPS).map(
        ([title, names]) =>
          html`<fieldset>
            <legend>${title}</legend>
            ${names.map(fieldOf)}
          </fieldset>`,
      )
    }
    <fieldset>
      <legend>Structure and tools</legend>
      <${JsonField}
        name="JSON schema of the answer"
        value=${structure?.jsonSchema}
        write=${(schema) => schema ?? ""}
        read=${(text) => JSON.parse(text) && text}
        fault=${faultOf("sampling_params.structured_output")}
        onChange=${setSchema}
      />
      <${JsonField}
        name="Tools, a list of definitions"
        value=${value.tools}
        write=${writeTools}
        read=${readTools}
        fault=${faultOf("tools")}
        onChange=${(tools) => onChange(withField(withField(value, "toolChoice"), "tools", tools) ?? {})}
      />
      ${value.tools && html`<${Choice} value=${value} fault=${faultOf("tool_choice")} set=${set} />`}
    </fieldset>
    <button type="button" disabled=${!Object.keys(value).length} onClick=${() => onChange({})}>
      Reset all
    </button>
  </form>`;
}

/** A name, a control, what the server says of it, and what is wrong with it. */
function Labelled({ name, about, fault, children }) {
  return html`<label class="chat-field">
    <span>${name}</span>${children} ${about && html`<small class="chat-about">${about}</small>`}
    ${fault && html`<small class="chat-fault" role="alert">${fault}</small>`}
  </label>`;
}

/** A control of the type that the server names, within the range that it names: "in (0, 1]". */
function Field({ about, standard, value, onChange, ...labels }) {
  const { description = "", anyOf = [] } = about ?? {};
  const types = anyOf.map(({ type }) => type);
  const input = (props) => html`<input placeholder=${standard ?? "default"} ...${props} />`;
  const lines = ({ target }) => {
    const listed = target.value.split("\n").filter(Boolean);
    onChange(listed.length ? listed : undefined);
  };
  const written = ({ target }) => onChange(target.value === "" ? undefined : target.value);
  const [, min, max] = /[[(](-?[\d.]+), (-?[\d.]+)\]/.exec(description) ?? [];
  const step = types.includes("integer") ? 1 : "any";
  const control = types.includes("array")
    ? html`<textarea placeholder="one on each line" value=${value?.join("\n")} onChange=${lines} />`
    : types.includes("boolean")
      ? input({
          type: "checkbox",
          checked: value,
          onChange: ({ target }) => onChange(target.checked || undefined),
        })
      : types.includes("string")
        ? input({ value: value ?? "", onInput: written })
        : input({ type: "number", min, max, step, value: value ?? "", onInput: written });
  return html`<${Labelled} about=${description} ...${labels}>${control}</${Labelled}>`;
}

/** A text whose value is used once `read` takes it; `read` throws an Error that says what is wrong. */
function JsonField({ value, write, read, fault, onChange, ...labels }) {
  const [draft, setDraft] = useState({ text: write(value), value });
  const { text, told } = draft.value === value ? draft : { text: write(value) };
  const onInput = ({ target }) => {
    const { value: text } = target;
    try {
      const value = text.trim() ? read(text) : undefined;
      setDraft({ text, value });
      onChange(value);
    } catch (error) {
      setDraft({ text, value, told: `Not used: ${error.message}` });
    }
  };
  return html`<${Labelled} fault=${told ?? fault} ...${labels}>
    <textarea class="code" rows="5" spellcheck=${false} value=${text} onInput=${onInput} />
  </${Labelled}>`;
}

/** Returns the tools of a text: a JSON list of definitions, plain or as OpenAI's API has them. */
function readTools(text) {
  const listed = JSON.parse(text);
  if (!Array.isArray(listed)) throw new Error("a list is needed: [{…}, …]");
  return listed.map((one, i) => {
    const { name, description, parameters, strict } = one?.function ?? one ?? {};
    if (!name) throw new Error(`definition ${i + 1} has no name`);
    return { name, description, parameters: parameters && JSON.stringify(parameters), strict };
  });
}

function writeTools(tools) {
  if (!tools) return "";
  const parsed = tools.map(({ parameters, ...rest }) => ({
    ...rest,
    parameters: parameters && JSON.parse(parameters),
  }));
  return JSON.stringify(parsed, null, 2);
}

function Choice({ value: { tools, toolChoice = {} }, fault, set }) {
  const choose = ({ target: { value } }) => {
    const changed = value.startsWith(MODE) ? { mode: value } : { tool: value };
    set("toolChoice", value === MODE ? undefined : changed);
  };
  return html`<${Labelled} name="calls" fault=${fault}>
    <select value=${toolChoice.tool ?? toolChoice.mode ?? MODE} onChange=${choose}>
      ${Object.entries(MODES).map(
        ([mode, label]) => html`<option value=${MODE + mode}>${label}</option>`,
      )}
      ${tools.map(({ name }) => html`<option value=${name}>${name}</option>`)}
    </select>
  </${Labelled}>`;
}
