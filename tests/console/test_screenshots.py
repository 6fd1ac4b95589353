"""Pictures of each view, for people to look at: `make test-console SCREENSHOTS=FOLDER`."""

from typing import Any

import pytest
from playwright.sync_api import Browser

from signalbox_router.main import Router
from tests.console.person import watched
from tests.console.stack import Services, url_of
from tests.console.views import VIEWS, View, shown

SIZES = ((1440, 900), (1024, 700), (390, 844))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_nothing_is_cut_off(
    view: View,
    theme: Any,
    browser: Browser,
    router: Router,
    services: Services,
    request: pytest.FixtureRequest,
) -> None:
    """No view is wider than the window, at any size."""
    folder = request.config.getoption("screenshots")
    overflow = "document.documentElement.scrollWidth - innerWidth"
    with (
        watched(browser, url_of(router), color_scheme=theme) as person,
        shown(view, person, services, router) as page,
    ):
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            if folder is not None:
                page.screenshot(path=folder / f"{view.name}-{width}-{theme}.png")
            assert page.evaluate(overflow) <= 0, f"{width} px"
    services.check_idle()
