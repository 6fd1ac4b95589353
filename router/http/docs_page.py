"""The page at /docs: Swagger UI, with assets from an installed package, so it needs no internet."""

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

PAGE = "/docs"
_ASSETS = "docs/assets"
"""Path of the assets, relative to the page as all its links, so that a proxy may add a prefix."""


def add_docs(app: FastAPI) -> None:
    app.mount(f"/{_ASSETS}", StaticFiles(packages=[("fastapi_swagger", "resources")]))
    app.add_route(PAGE, _page, include_in_schema=False)


async def _page(request: Request) -> Response:
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Signalbox",
        swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{_ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{_ASSETS}/favicon-32x32.png",
        swagger_ui_parameters={"validatorUrl": None, "defaultModelsExpandDepth": 0},
    )
