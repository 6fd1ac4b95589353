"""A conversation in the chat: what is said, kept, changed and found again."""

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.console.chat import answers, ask, box_of, conversations, open_settings, send
from tests.console.person import Person
from tests.console.stack import Services
from tests.waiting import wait_until

ENDLESS = "on and on, " * 1_000


def test_an_answer_streams_and_can_be_stopped(person: Person, services: Services) -> None:
    services.model.answers["Count for ever"] = ENDLESS
    page = person.open()
    send(page, "Count for ever")
    message = answers(page).last
    expect(message).to_contain_text("on and on, on and on")
    assert services.num_live() == 1
    page.get_by_role("button", name="Stop").click()
    expect(message).to_contain_text("stopped by you")
    wait_until(lambda: services.num_live() == 0)
    said = message.inner_text()
    assert said.count("on and on") < ENDLESS.count("on and on")
    page.reload()
    expect(answers(page).last).to_contain_text("stopped by you")


def test_escape_stops_and_leaving_the_page_too(person: Person, services: Services) -> None:
    services.model.answers |= {"Count on": ENDLESS, "Count further": ENDLESS}
    page = person.open()
    send(page, "Count on")
    expect(answers(page).last).to_contain_text("on and on")
    page.keyboard.press("Escape")
    expect(answers(page).last).to_contain_text("stopped by you")
    wait_until(lambda: services.num_live() == 0)
    send(page, "Count further")
    expect(answers(page).last).to_contain_text("on and on")
    page.goto("about:blank")
    wait_until(lambda: services.num_live() == 0)


def test_a_message_is_edited_as_a_branch(person: Person, services: Services) -> None:
    page = person.open()
    ask(page, "The first wording")
    page.get_by_role("article", name="You").get_by_role("button", name="Edit").click()
    page.get_by_label("Text of the message").fill("The second wording")
    you = page.get_by_role("article", name="You")
    you.get_by_role("button", name="Send").click()
    expect(answers(page)).to_contain_text("You said: The second wording")
    assert "first wording" not in services.model.prompt_of("The second wording")
    expect(you).to_contain_text("2/2")
    you.get_by_role("button", name="Previous branch").click()
    expect(answers(page)).to_contain_text("You said: The first wording")
    page.reload()
    expect(answers(page)).to_contain_text("You said: The first wording")


def test_an_answer_is_generated_again(person: Person, services: Services) -> None:
    page = person.open()
    services.model.answers["Say it twice"] = "Once."
    message = ask(page, "Say it twice")
    expect(message).to_contain_text("Once.")
    message.get_by_role("button", name="Regenerate").click()
    expect(answers(page)).to_contain_text("2/2")
    page.get_by_role("button", name="Previous branch").click()
    expect(answers(page)).to_contain_text("1/2")


def test_earlier_turns_go_with_the_question(person: Person, services: Services) -> None:
    page = person.open()
    ask(page, "Remember seven")
    ask(page, "What was it")
    prompt = services.model.prompt_of("What was it")
    assert prompt.index("Remember seven") < prompt.index("You said: Remember seven")


def test_conversations_are_kept_and_found(person: Person) -> None:
    page = person.open()
    ask(page, "About the heron")
    page.get_by_role("button", name="New conversation").click()
    ask(page, "About the otter")
    page.reload()
    listed = conversations(page)
    expect(listed).to_contain_text("About the heron")
    expect(answers(page)).to_contain_text("About the otter")
    listed.get_by_text("About the heron").click()
    expect(answers(page)).to_contain_text("You said: About the heron")
    page.get_by_role("searchbox", name="Search").fill("HERON")
    expect(listed).to_contain_text("About the heron")
    expect(listed).not_to_contain_text("About the otter")
    page.get_by_role("searchbox", name="Search").fill("")
    expect(listed).to_contain_text("About the otter")


def test_a_conversation_is_deleted(person: Person) -> None:
    page = person.open()
    ask(page, "Not for ever")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(conversations(page)).not_to_contain_text("Not for ever")
    page.reload()
    expect(box_of(page)).to_be_visible()
    expect(page.get_by_text("Not for ever")).to_have_count(0)


def test_a_system_prompt_comes_first(person: Person, services: Services) -> None:
    page = person.open()
    open_settings(page)
    page.get_by_label("System prompt").fill("Speak like a heron.")
    ask(page, "Who are you")
    prompt = services.model.prompt_of("Who are you")
    assert prompt.startswith("<|im_start|>system\nSpeak like a heron.")


def test_conversations_are_exported_and_imported(person: Person, tmp_path: Path) -> None:
    page = person.open()
    ask(page, "To be carried away")
    with page.expect_download() as carried:
        page.get_by_role("button", name="Export all").click()
    path = tmp_path / carried.value.suggested_filename
    carried.value.save_as(path)
    assert "To be carried away" in json.dumps(json.loads(path.read_text()))
    page.get_by_label("Import").set_input_files(path)
    expect(conversations(page).get_by_text("To be carried away")).to_have_count(2)
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    page.get_by_label("Import").set_input_files(bad)
    expect(page.get_by_role("status").get_by_text("not JSON")).to_be_visible()


def test_what_the_storage_has_no_room_for_is_said_to_be_lost(person: Person) -> None:
    """The answer is there all the same; once there is room, all is kept again."""
    browser = person.context.new_cdp_session(person.page)
    origin = {"origin": person.url.rstrip("/")}
    browser.send("Storage.overrideQuotaForOrigin", {**origin, "quotaSize": 1})
    page = person.open()
    expect(ask(page, "Not kept")).to_contain_text("You said: Not kept")
    expect(page.get_by_role("status").get_by_text("storage is full")).to_be_visible()
    browser.send("Storage.overrideQuotaForOrigin", origin)
    page.reload()
    expect(page.get_by_text("Not kept")).to_have_count(0)
    ask(page, "Kept again")
    page.reload()
    expect(answers(page).last).to_contain_text("You said: Kept again")


GIVE = """
(box, [kind, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "text/plain" }));
  const Kind = kind === "drop" ? DragEvent : ClipboardEvent;
  const given = { dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true };
  box.dispatchEvent(new Kind(kind, given));
}"""


def test_a_text_file_is_dropped_or_pasted(person: Person, services: Services) -> None:
    page = person.open()
    box_of(page).evaluate(GIVE, ["drop", "notes.txt", "Dropped words"])
    expect(page.get_by_text("notes.txt")).to_be_visible()
    box_of(page).evaluate(GIVE, ["paste", "more.md", "Pasted words"])
    expect(page.get_by_text("more.md")).to_be_visible()
    box_of(page).fill("Read these")
    box_of(page).press("Enter")
    expect(answers(page).last).to_contain_text("Pasted words")
    prompt = services.model.prompts[-1]
    assert "notes.txt" in prompt
    assert "Dropped words" in prompt


def test_the_window_is_shown(person: Person) -> None:
    page = person.open()
    ask(page, "How full is it")
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"\d+ (of|/) 16,384"))


def test_keys_do_what_buttons_do(person: Person) -> None:
    page = person.open()
    ask(page, "First by key")
    page.keyboard.press("Control+Shift+O")
    expect(answers(page)).to_have_count(0)
    expect(box_of(page)).to_be_focused()


def test_ten_thousand_messages_stay_usable(person: Person, tmp_path: Path) -> None:
    """The newest are there at once, and the page has elements of a few alone."""
    page = person.open()
    messages = [
        {
            "id": f"m{i}",
            "parent": f"m{i - 1}" if i else None,
            "role": "assistant" if i % 2 else "user",
            "text": f"Message number {i}",
            "createdAt": 1_700_000_000_000 + i,
        }
        for i in range(10_000)
    ]
    conversation = {"title": "Very long", "messages": messages, "selected": {}}
    file = {"format": "signalbox.conversations", "version": 1, "conversations": [conversation]}
    path = tmp_path / "long.json"
    path.write_text(json.dumps(file))
    page.get_by_label("Import").set_input_files(path)
    conversations(page).get_by_text("Very long").click()
    expect(page.get_by_text("Message number 9999")).to_be_visible()
    assert page.get_by_role("article").count() < 500
    page.reload()
    expect(page.get_by_text("Message number 9999")).to_be_visible()
    scroller = page.get_by_role("region", name="Messages")
    place = "e => document.querySelector('[id=chat-m9990]').getBoundingClientRect().top"
    scroller.evaluate("e => { e.scrollTop = 300; }")
    expect(page.get_by_text("Message number 9920")).to_have_count(1)
    assert scroller.evaluate(place) > 0, "what is looked at stays below what is added before it"
    page.get_by_role("searchbox", name="Search").fill("NUMBER 5000")
    expect(conversations(page).get_by_role("button", name="Very long")).to_be_visible()
    conversations(page).get_by_text("Very long").click()
    expect(page.get_by_text("Message number 5000")).to_be_in_viewport()
    assert page.get_by_role("article").count() < 500
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_text("Message number 9999")).to_be_in_viewport()
