"""What a conversation asks for beside its messages, and what an answer shows of it."""

import json
import re

from playwright.sync_api import expect

from tests.console.chat import answers, ask, open_settings, send, sent
from tests.console.person import Person
from tests.console.stack import ADAPTER, MODEL, Services

THOUGHT = "The person wants a number."
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Seoul"}}\n</tool_call>'


def test_parameters_reach_the_server(person: Person, services: Services) -> None:
    page = person.open()
    open_settings(page)
    for name, value in (("temperature", "0.25"), ("top_p", "0.5"), ("top_k", "7")):
        page.get_by_label(name).fill(value)
    page.get_by_label("max_tokens").fill("5")
    page.get_by_label("stop", exact=True).fill("never")
    request = sent(page, "With parameters")
    asked = request["samplingParams"]
    names = ("temperature", "topP", "topK", "maxTokens")
    assert [float(asked[name]) for name in names] == [0.25, 0.5, 7, 5]
    assert asked["stop"] == ["never"]
    expect(answers(page)).to_contain_text("You s")
    expect(answers(page)).to_contain_text("cut at max_tokens")
    page.reload()
    request = sent(page, "With the same parameters")
    assert request["samplingParams"]["topK"] == asked["topK"]


def test_an_adapter_is_chosen(person: Person, services: Services) -> None:
    page = person.open()
    models = page.get_by_role("combobox", name="Model")
    models.select_option(f"{MODEL} + {ADAPTER}")
    with page.expect_request("**/Chat") as asked:
        send(page, "With an adapter")
    assert f'"model":"{ADAPTER}"' in (asked.value.post_data or "")
    expect(page.get_by_role("article", name=ADAPTER)).to_contain_text("You said: With an adapter")
    page.reload()
    expect(models).to_have_value(ADAPTER)
    models.select_option(MODEL)
    assert sent(page, "Without it")["model"] == MODEL
    expect(answers(page)).to_contain_text("You said: Without it")


def test_what_the_server_refuses_is_shown_at_its_field(person: Person) -> None:
    page = person.open()
    open_settings(page)
    page.get_by_label("top_p").fill("7")
    send(page, "With a bad parameter")
    expect(page.get_by_role("article").last.get_by_role("alert")).to_contain_text("top_p")
    settings = page.get_by_role("complementary", name="Settings")
    expect(settings.get_by_role("alert")).to_be_visible()
    page.get_by_label("top_p").fill("0.7")
    page.get_by_role("button", name="Try again").click()
    expect(answers(page).last).to_contain_text("You said: With a bad parameter")
    person.allows("400")


def test_an_answer_follows_a_schema(person: Person, services: Services) -> None:
    """The scripted model fails on a token that the schema forbids."""
    services.model.answers["A number, please"] = '{"number": 7}'
    services.model.answers["A number again"] = "Seven."
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    page = person.open()
    open_settings(page)
    page.get_by_label("JSON schema of the answer").fill(json.dumps(schema))
    expect(ask(page, "A number, please")).to_contain_text('{"number": 7}')
    send(page, "A number again")
    expect(answers(page).last).to_contain_text("the script names a token that may not be drawn")


def test_a_tool_is_called_and_its_result_typed(person: Person, services: Services) -> None:
    services.model.answers["How is the weather in Seoul?"] = CALL
    page = person.open()
    open_settings(page)
    page.get_by_label("Tools, as a list").fill(json.dumps([TOOL]))
    message = ask(page, "How is the weather in Seoul?")
    expect(message).to_contain_text('"city": "Seoul"')
    message.get_by_label("Result of weather").fill('{"sky": "clear"}')
    message.get_by_role("button", name="Send").click()
    expect(answers(page).last).to_contain_text('The tool says: {"sky": "clear"}')
    assert '"name": "weather"' in services.model.prompts[-1]


def test_reasoning_is_folded_away(person: Person, services: Services) -> None:
    services.model.answers["Think first"] = f"<think>\n{THOUGHT}\n</think>\n\nSeven."
    page = person.open()
    message = ask(page, "Think first")
    expect(message).to_contain_text("Seven.")
    expect(message.get_by_text(THOUGHT)).to_be_hidden()
    message.get_by_text(re.compile("Reasoning")).click()
    expect(message.get_by_text(THOUGHT)).to_be_visible()


def test_code_is_copied(person: Person, services: Services) -> None:
    services.model.answers["Some code"] = "Here:\n\n```python\nprint('<b>')\n```\n"
    person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = person.open()
    message = ask(page, "Some code")
    message.get_by_role("button", name="Copy the code").click()
    expect(message.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "print('<b>')"


def test_alternatives_are_shown_on_hover_and_by_key(person: Person) -> None:
    page = person.open()
    open_settings(page)
    page.get_by_label("logprobs").fill("3")
    message = ask(page, "How sure are you")
    message.get_by_role("button", name="Probabilities").click()
    tokens = message.get_by_role("listbox")
    tokens.get_by_role("option").nth(2).hover()
    expect(message.get_by_role("status")).to_contain_text("%")
    expect(message.get_by_role("row")).to_have_count(3)
    page.mouse.move(0, 0)
    expect(message.get_by_role("row")).to_have_count(0)
    tokens.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.get_by_role("option").nth(1)).to_have_attribute("aria-selected", "true")
    expect(message.get_by_role("row")).to_have_count(3)


def test_speed_and_time_to_first_token_are_shown(person: Person) -> None:
    message = ask(person.open(), "How fast are you")
    expect(message).to_contain_text(re.compile(r"\d tokens/s"))
    expect(message).to_contain_text(re.compile(r"first token after [\d.]+ m?s"))
