"""Each view by keyboard alone, to a screen reader, in both themes, and from right to left."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from signalbox_router.main import Router
from tests.console.chat import ask, box_of
from tests.console.person import Person, watched
from tests.console.stack import Services, url_of
from tests.console.views import VIEWS, View, shown

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = {"serious", "critical"}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_no_serious_fault(
    view: View, theme: Any, browser: Browser, router: Router, services: Services
) -> None:
    """As axe-core finds them; it is loaded past the page's policy."""
    with (
        watched(browser, url_of(router), color_scheme=theme, bypass_csp=True) as person,
        shown(view, person, services, router) as page,
    ):
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    faults = [
        f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}"
        for one in found["violations"]
        if one["impact"] in SERIOUS
    ]
    assert not faults, "\n".join(faults)
    services.check_idle()


NUM_REACHABLE = """
[...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
  .filter((e) => !e.disabled && e.tabIndex >= 0)
  .filter((e) => e.checkVisibility({visibilityProperty: true})).length
"""
FOCUSED = """
() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const isSeen = box.width > 0 && box.height > 0 && box.right > 0 && box.left < innerWidth
    && box.bottom > 0 && box.top < innerHeight;
  return one === document.body ? null : {html: one.outerHTML.slice(0, 200), isMarked, isSeen};
}
"""


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_tab_leads_through_a_view_and_shows_where_it_is(
    view: View, person: Person, services: Services, router: Router
) -> None:
    with shown(view, person, services, router) as page:
        assert_tab_leads_through(page)


def assert_tab_leads_through(page: Page) -> None:
    """From the first control to the last, each of which is seen and marked."""
    reachable = page.evaluate(NUM_REACHABLE)
    page.get_by_role("button", name="Skip to the view").focus()
    stops = ["the link that skips the bar"]
    for _ in range(2 * reachable + 20):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None:
            break
        assert focused["isMarked"], focused
        assert focused["isSeen"], focused
        stops.append(focused["html"])
    assert focused is None, "Tab is trapped"
    assert len(stops) >= reachable / 2, stops


"""A group of radio buttons, or of tabs, is one stop."""


def test_text_from_right_to_left_reads_so(person: Person, services: Services) -> None:
    hebrew = "מהי בירת קוריאה?"
    services.model.answers[hebrew] = (
        "סיאול היא **הבירה**.\n\n- ראשון\n- שני\n\n```python\nx = 1\n```\n"
    )
    page = person.open()
    box_of(page).fill(hebrew)
    direction = "e => getComputedStyle(e).direction"
    assert box_of(page).evaluate(direction) == "rtl"
    message = ask(page, hebrew)
    assert message.get_by_text("סיאול").evaluate(direction) == "rtl"
    assert page.get_by_role("article", name="You").get_by_text(hebrew).evaluate(direction) == "rtl"
    assert message.get_by_text("x = 1").evaluate(direction) == "ltr"
