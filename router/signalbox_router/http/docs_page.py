"""The page at /docs: Swagger UI, with assets from an installed package, so it needs no internet."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from signalbox_router.console.page_headers import page_headers

PAGE = "/docs"
ASSETS = "/docs/assets"
DESCRIPTION = "/openapi.json"

_HEADERS = page_headers(trusted_types="dompurify")  # a library of Swagger UI makes that policy
_SCRIPT = f"{ASSETS}/start.js"
_HTML = f"""\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <title>Signalbox</title>
    <link rel="stylesheet" href="{ASSETS}/swagger-ui.css" />
    <link rel="icon" href="{ASSETS}/favicon-32x32.png" />
  </head>
  <body>
    <div id="swagger-ui"></div>
    <script src="{ASSETS}/swagger-ui-bundle.js"></script>
    <script src="{_SCRIPT}"></script>
  </body>
</html>
""".replace('="/', '="')
"""The page, whose links are relative, so that a proxy may add a prefix."""
_START = f"""\
// Shows descriptions as text with `code`: Swagger UI would make markup of them, which the
// policy of the page refuses.
function plainText({{ React }}) {{
  const Code = (text, i) => (i % 2 ? React.createElement("code", null, text) : text);
  const Text = ({{ source }}) =>
    React.createElement("p", null, ...String(source ?? "").split("`").map(Code));
  return {{ wrapComponents: {{ Markdown: () => Text }} }};
}}

SwaggerUIBundle({{
  url: "{DESCRIPTION.removeprefix("/")}",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  plugins: [plainText],
  validatorUrl: null,
}});
"""


def add_docs(app: FastAPI) -> None:
    app.add_route(PAGE, _page, include_in_schema=False)
    app.add_route(_SCRIPT, _script, include_in_schema=False)
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_swagger", "resources")]))


async def _page(request: Request) -> Response:
    return Response(_HTML, media_type="text/html", headers=_HEADERS)


async def _script(request: Request) -> Response:
    return Response(_START, media_type="text/javascript", headers=_HEADERS)
