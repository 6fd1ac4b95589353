"""Headers of pages that are sent to browsers: what such a page may load and do."""


def page_headers(*, trusted_types: str = "'none'") -> dict[str, str]:
    """Returns the headers of a page whose scripts, styles and calls are all of its own server.

    Args:
        trusted_types: names of the policies by which its scripts may turn text into markup.
    """
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self' data:; base-uri 'self'; form-action 'none'; frame-ancestors 'none';"
        f" require-trusted-types-for 'script'; trusted-types {trusted_types}"
    )
    return {
        "content-security-policy": policy,
        "cross-origin-embedder-policy": "require-corp",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
