"""The page at /docs: Swagger UI, with assets from an installed package, so it needs no internet."""

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

PAGE = "/docs"
ASSETS = "/docs/assets"
DESCRIPTION = "/openapi.json"


def add_docs(app: FastAPI) -> None:
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_swagger", "resources")]))
    app.add_route(PAGE, _page, include_in_schema=False)


async def _page(request: Request) -> Response:
    """Returns the page, whose links are relative, so that a proxy may add a prefix."""
    assets = ASSETS.removeprefix("/")
    return get_swagger_ui_html(
        openapi_url=DESCRIPTION.removeprefix("/"),
        title="Signalbox",
        swagger_js_url=f"{assets}/swagger-ui-bundle.js",
        swagger_css_url=f"{assets}/swagger-ui.css",
        swagger_favicon_url=f"{assets}/favicon-32x32.png",
        swagger_ui_parameters={"validatorUrl": None, "defaultModelsExpandDepth": 0},
    )
