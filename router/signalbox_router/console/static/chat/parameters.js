/** What a request asks for besides its messages: sampling, thinking, structure and tools. */

import { html, useEffect, useState } from "../lib/html.js";
import { GROUPS, partOf } from "./fields.js";

/** The names by which the HTTP API describes some fields. */
const DESCRIBED_AS = {
  logprobs: "top_logprobs",
  effort: "reasoning_effort",
  budget: "thinking_token_budget",
};
const RANGE = /[[(](-?[\d.]+), (-?[\d.]+)\]/;

const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

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
 * Edits `value`: `{samplingParams, thinking}` of ChatRequest in proto3 JSON, and `tools` as they are typed.
 *
 * @param model the answer of GetModel, whose defaults are shown where nothing is set.
 * @param violations those of the BadRequest with which the server refused the last request.
 */
export function Parameters({ value, onChange, model, violations = [] }) {
  const [about, setAbout] = useState(null);
  useEffect(() => {
    describe().then(setAbout, () => setAbout({}));
  }, []);
  const bound = (...path) => {
    const named = path.map(snake).join(".");
    return {
      value: path.reduce((object, name) => object?.[name], value),
      fault: violations.find(({ field }) => field.startsWith(named))?.description,
      onChange: (changed) => onChange(withValue(value, path, changed) ?? {}),
    };
  };
  const fieldOf = (name) => {
    const told = { name: snake(name), about: about[DESCRIBED_AS[name] ?? snake(name)] };
    const standard = model?.defaultSamplingParams?.[name];
    return html`<${Field}
      key=${name}
      ...${told}
      standard=${standard}
      ...${bound(partOf(name), name)}
    />`;
  };
  const groups = Object.entries(GROUPS).map(
    ([title, names]) =>
      html`<fieldset>
        <legend>${title}</legend>
        ${about && names.map(fieldOf)}
      </fieldset>`,
  );
  const schema = bound("samplingParams", "structuredOutput", "jsonSchema");
  const asText = { read: (text) => JSON.parse(text) && text, write: String };
  const asList = { read: JSON.parse, write: (tools) => JSON.stringify(tools, null, 2) };
  return html`<form class="chat-parameters" onSubmit=${(event) => event.preventDefault()}>
    ${groups}
    <fieldset>
      <legend>Structure and tools</legend>
      <${JsonField} name="JSON schema of the answer" ...${asText} ...${schema} />
      <${JsonField} name="Tools, as a list" ...${asList} ...${bound("tools")} />
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
    ${about && html`<small id="chat-about-${name}" class="muted">${about}</small>`}
    ${fault && html`<small class="bad" role="alert">${fault}</small>`}
  </div>`;
}

/** A control of the type that the server names, within the range that it names: "in (0, 1]". */
function Field({ about = {}, standard, value, onChange, ...labels }) {
  const { description = "", anyOf = [] } = about;
  const is = (name) => anyOf.some(({ type }) => type === name);
  const [, min, max] = RANGE.exec(description) ?? [];
  const props = { "aria-describedby": `chat-about-${labels.name}`, value: value ?? "" };
  if (is("array")) {
    props.value = props.value && value.join?.("\n");
    props.placeholder = "one on each line";
    props.onChange = ({ target }) => {
      const lines = target.value.split("\n").filter(Boolean);
      onChange(lines.length ? lines : undefined);
    };
  } else if (is("boolean")) {
    props.type = "checkbox";
    props.checked = value;
    props.onChange = ({ target }) => onChange(target.checked || undefined);
  } else {
    props.placeholder = standard === undefined ? "default" : parseFloat(standard.toPrecision(6));
    props.onInput = ({ target }) => onChange(target.value || undefined);
    const step = is("integer") ? 1 : "any";
    if (is("number") || is("integer")) Object.assign(props, { type: "number", step, min, max });
  }
  const tag = is("array") ? "textarea" : "input";
  return html`<${Labelled} about=${description} ...${labels}><${tag} ...${props} /></${Labelled}>`;
}

/** A JSON text, whose value is used once it is right. `read` makes the value, `write` a text of it. */
function JsonField({ value, read, write, fault, onChange, ...labels }) {
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
