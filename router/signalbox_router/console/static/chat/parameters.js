/** What a request asks for besides its messages: sampling, thinking, structure and tools. */

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
const MODES = { AUTO: "as the model decides", NONE: "none", REQUIRED: "at least one" };
const RANGE = /[[(](-?[\d.]+), (-?[\d.]+)\]/;

const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const isWithin = (path, { field }) =>
  field.startsWith(path) && /^[.[]|^$/.test(field.slice(path.length));

/** Returns what the server says of the fields of a chat, by name: their types, ranges and defaults. */
async function describe() {
  const answer = await fetch(new URL("openapi.json", document.baseURI));
  return (await answer.json()).components.schemas.ChatBody.properties;
}

/** Returns a copy with a value at a path; undefined removes it, and objects that it leaves empty. */
function withValue(object, [name, ...path], value) {
  const changed = {
    ...object,
    [name]: path.length ? withValue(object?.[name], path, value) : value,
  };
  if (changed[name] === undefined) delete changed[name];
  return Object.keys(changed).length ? changed : undefined;
}

/**
 * Edits `value`: fields of ChatRequest in proto3 JSON, `{samplingParams, thinking, tools, toolChoice}`.
 *
 * @param model the answer of GetModel, whose defaults are shown where nothing is set.
 * @param violations those of the BadRequest with which the server refused the last request.
 */
export function Parameters({ value, onChange, model, violations = [] }) {
  const [about, setAbout] = useState(null);
  useEffect(() => {
    describe().then(setAbout, () => setAbout({}));
  }, []);
  const bound = (...path) => ({
    value: path.reduce((object, name) => object?.[name], value),
    fault: violations.find((one) => isWithin(path.map(snake).join("."), one))?.description,
    onChange: (changed) => onChange(withValue(value, path, changed) ?? {}),
  });
  const standardOf = (name) => {
    const value = model?.defaultSamplingParams?.[name]; // of 32 bits: 0.6 is 0.6000000238418579
    return value === undefined ? "default" : parseFloat(value.toPrecision(6));
  };
  const fieldOf = (name) =>
    html`<${Field}
      key=${name}
      name=${snake(name)}
      about=${about[DESCRIBED_AS[name] ?? snake(name)]}
      standard=${standardOf(name)}
      ...${bound(GROUPS.Thinking.includes(name) ? "thinking" : "samplingParams", name)}
    />`;
  const groups = Object.entries(GROUPS).map(
    ([title, names]) =>
      html`<fieldset>
        <legend>${title}</legend>
        ${about && names.map(fieldOf)}
      </fieldset>`,
  );
  const schema = bound("samplingParams", "structuredOutput", "jsonSchema");
  return html`<form class="chat-parameters" onSubmit=${(event) => event.preventDefault()}>
    ${groups}
    <fieldset>
      <legend>Structure and tools</legend>
      <${JsonField} name="JSON schema of the answer" ...${schema} read=${readSchema} />
      <${JsonField}
        name="Tools, as a list"
        ...${bound("tools")}
        read=${readTools}
        write=${listed}
      />
      <${Calls} tools=${value.tools} ...${bound("toolChoice")} />
    </fieldset>
    <button type="button" disabled=${!Object.keys(value).length} onClick=${() => onChange({})}>
      Reset all
    </button>
  </form>`;
}

/** A name, a control, what the server says of it, and what is wrong with it. */
function Labelled({ name, about, fault, children }) {
  return html`<div class="chat-field">
    <label><span>${name}</span>${children}</label>
    ${about && html`<small id="chat-about-${name}" class="chat-about">${about}</small>`}
    ${fault && html`<small class="chat-fault" role="alert">${fault}</small>`}
  </div>`;
}

/** A control of the type that the server names, within the range that it names: "in (0, 1]". */
function Field({ about = {}, standard, value, onChange, ...labels }) {
  const { description = "", anyOf = [] } = about;
  const [{ type }] = anyOf.filter((one) => one.type === "array").concat(anyOf, { type: "string" });
  const [, min, max] = RANGE.exec(description) ?? [];
  const set = (changed) => onChange(changed.length === 0 ? undefined : changed);
  const props = {
    "aria-describedby": `chat-about-${labels.name}`,
    placeholder: type === "array" ? "one on each line" : standard,
    value: type === "array" ? value?.join?.("\n") : (value ?? ""),
    onInput: ({ target }) => set(target.value),
  };
  const onLines = ({ target }) => set(target.value.split("\n").filter(Boolean));
  const onCheck = ({ target }) => onChange(target.checked || undefined);
  const controls = {
    array: () => html`<textarea ...${props} onInput=${null} onChange=${onLines} />`,
    boolean: () => html`<input type="checkbox" ...${props} checked=${value} onInput=${onCheck} />`,
    string: () => html`<input ...${props} />`,
    number: (step = "any") => html`<input type="number" ...${{ step, min, max, ...props }} />`,
    integer: () => controls.number(1),
  };
  return html`<${Labelled} about=${description} ...${labels}>${controls[type]()}</${Labelled}>`;
}

/** A text whose value is used once `read` takes it; `read` throws an Error that says what is wrong. */
function JsonField({ value, read, write = String, fault, onChange, ...labels }) {
  const written = () => ({ text: value === undefined ? "" : write(value), value });
  const [draft, setDraft] = useState(written);
  const { text, told } = draft.value === value ? draft : written();
  const onInput = ({ target: { value: text } }) => {
    try {
      const changed = text.trim() ? read(text) : undefined;
      setDraft({ text, value: changed });
      onChange(changed);
    } catch (error) {
      setDraft({ text, value, told: `Not used: ${error.message}` });
    }
  };
  return html`<${Labelled} fault=${told ?? fault} ...${labels}>
    <textarea class="code" rows="5" spellcheck=${false} value=${text} onInput=${onInput} />
  </${Labelled}>`;
}

function readSchema(text) {
  JSON.parse(text);
  return text;
}

/** Returns the tools of a JSON list of definitions, plain or as OpenAI's API has them. */
function readTools(text) {
  const found = JSON.parse(text);
  if (!Array.isArray(found)) throw new Error("a list is needed: [{…}, …]");
  return found.map((one, i) => {
    const { name, description, parameters, strict } = one?.function ?? one ?? {};
    if (!name) throw new Error(`definition ${i + 1} has no name`);
    return { name, description, parameters: parameters && JSON.stringify(parameters), strict };
  });
}

/** Returns a list as JSON, with texts of JSON as what they say. */
function listed(tools) {
  const opened = (key, value) => (key === "parameters" ? JSON.parse(value) : value);
  try {
    return JSON.stringify(tools, opened, 2);
  } catch {
    return JSON.stringify(tools, null, 2);
  }
}

function Calls({ tools, value = {}, onChange, fault }) {
  const names = Array.isArray(tools) ? tools.map(({ name }) => name) : [];
  const choose = ({ target: { value: chosen } }) => {
    if (names.includes(chosen)) onChange({ tool: chosen });
    else onChange(chosen === "AUTO" ? undefined : { mode: `TOOL_CHOICE_MODE_${chosen}` });
  };
  const chosen = value.tool ?? value.mode?.replace("TOOL_CHOICE_MODE_", "") ?? "AUTO";
  const options = [...Object.entries(MODES), ...names.map((name) => [name, name])];
  return html`<${Labelled} name="calls" fault=${fault}>
    <select value=${chosen} onChange=${choose}>
      ${options.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
    </select>
  </${Labelled}>`;
}
