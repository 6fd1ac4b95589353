"""Rendering knows the writer of each character, and renders what Jinja renders."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _compile_jinja_template

from signalbox_router.prompt.chat import template_sandbox
from signalbox_router.prompt.chat.provenance import (
    CLIENT,
    MODEL,
    TEMPLATE,
    Text,
    marked,
    writers_of,
)

# Python warns of expressions such as 1.5[0], which templates may have.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::SyntaxWarning")]

VALUES = (
    "x", "'<|im_end|>'", "(x ~ '<|im_end|>')", "('<|' + x)", "(x + '|>')", "y", "n",
    "['<|a|>', x]", "{'k': x, '<|b|>': 1}", "none", "missing", "z.deep[0]", "m", "true", "1.5",
)  # fmt: skip
OPERATIONS = (
    "{}", "{} | trim", "{} | upper", "{} | lower", "{} | title", "{} | capitalize", "{} | tojson",
    "{} | tojson(indent=2)", "{} | replace('|', '!')", "{} | replace('', '<|')", "{} | indent(2)",
    "{} | indent(2, true, true)", "{} | join(', ')", "{} | join", "{} | list", "{} | first",
    "{} | last", "{}[::-1] | list", "{} | string", "{} | length", "{} | default('<|d|>', true)",
    "{} | center(20)", "{} | truncate(5)", "{} | wordwrap(3)", "{} | safe", "{} | e", "{} | int",
    "{} | string | safe + '<b>'", "{} | striptags", "{} | urlencode", "{} | pprint",
    "{} | unique | list", "{} | map('upper') | join('-')", "{} | map('string') | list",
    "{} | sort", "{} | batch(2) | list", "{}[0]", "{}[-1]", "{}[1:]", "{}[::-1]",
    "{}[:2] ~ {}[2:]", "{} * 2", "2 * {}", "{} + 'a'", "'a' + {}", "{} ~ 5 ~ none ~ true",
    "'%s|%s' % ({}, 1)", "'%s' | format({})", "'{{}}'.format({})", "'{{0}} {{k}}'.format({}, k=1)",
    "{} % 1", "{}.split('<')", "{}.split()", "{}.split('|', 1)[-1]", "{}.rsplit(none, 1)",
    "{}.rsplit('|', 1)", "{}.splitlines()", "{}.strip()", "{}.lstrip('<')", "{}.rstrip('|>')",
    "{}.partition('|')", "{}.rpartition('|')", "{}.replace('<', '(', 1)", "{}.removeprefix('<')",
    "{}.removesuffix('>')", "{}.startswith('<')", "{}.upper()", "{}.title()", "{}.swapcase()",
    "{}.casefold()", "{}.center(9, '-')", "{}.ljust(9)", "{}.zfill(9)", "{}.find('|')",
    "{}.join(['a', 'b', x])", "'-'.join({})", "{}.encode()", "{}.expandtabs()", "'<' in {}",
    "{} in x", "{} == x", "{} is string", "{} is mapping", "{} is iterable", "{}.count('<')",
    "{}._writers", "{}.__class__", "{}.items() | list", "{}.k", "{}['k']", "{} if x else y",
    "{} is none", "{} is undefined", "{} < 'a'", "[{}] | tojson", "dict(a={}) | tojson",
    "range(3) | join({})", "{}.isalpha()", "{} | wordcount", "{} | attr('upper')()",
    "{} | select | list", "{} | dictsort", "cycler({}, 'b').next()", "joiner({})()", "{} | round",
    "{} | float", "{} | xmlattr", "{} | abs", "{} | sum", "{} | max", "{} | forceescape",
    "{} | filesizeformat", "namespace(a={}).a",
)  # fmt: skip
BLOCKS = (
    "{{{{ {} }}}}", "a{{{{ {} }}}}<|z|>", "{{% set s = {} %}}{{{{ s }}}}{{{{ s | length }}}}",
    "{{% set s %}}[{{{{ {} }}}}]{{% endset %}}{{{{ s | upper }}}}",
    "{{% macro f(v, w='<|w|>') %}}({{{{ v }}}}{{{{ w }}}})"
    "{{% endmacro %}}{{{{ f({}) | trim }}}}",
    "{{% filter upper %}}b{{{{ {} }}}}{{% endfilter %}}",
    "{{% for c in {} %}}{{{{ c }}}},{{% endfor %}}",
    "{{% macro g() %}}<{{{{ caller() }}}}>{{% endmacro %}}"
    "{{% call g() %}}{{{{ {} }}}}{{% endcall %}}",
    "{{% autoescape true %}}{{{{ {} }}}}{{{{ 'a<' ~ {} }}}}{{% endautoescape %}}",
    "{{% block b %}}{{{{ {} }}}}{{% endblock %}}{{{{ self.b() }}}}",
    "{{% set n = namespace(t='') %}}{{% for c in 'ab' %}}"
    "{{% set n.t = n.t + c ~ ({}) %}}{{% endfor %}}{{{{ n.t }}}}",
)  # fmt: skip


def reference(source: str, variables: dict[str, Any]) -> str | None:
    """Returns what transformers' Jinja makes of it; None for an error."""
    try:
        return str(_compile_jinja_template(source).render(**variables))
    except Exception:
        return None


def ours(source: str, variables: dict[str, Any]) -> Text | None:
    try:
        template = template_sandbox.ENVIRONMENT.from_string(source)
        given = {"messages": [], **variables}
        return template_sandbox.render(template, given, special_tokens={}, max_bytes=1 << 20)
    except Exception:
        return None


texts = st.one_of(
    st.sampled_from(["", "<|im_end|>", " a <|b|>\n", "ß<|İ|>ǆ", "x\x1cy\u2028z", "{}", "%s", "<&"]),
    st.text("<|>ab \n\t'\"&%{}ßİ東😀", max_size=12),
)


def make_source(draw: Any) -> str:
    operand = draw(st.sampled_from(VALUES))
    for _ in range(draw(st.integers(1, 3))):
        operation = draw(st.sampled_from(OPERATIONS))
        operand = "(" + operation.format(*[operand] * operation.count("{}")) + ")"
    source = draw(st.sampled_from(BLOCKS))
    return str(source.format(*[operand] * source.count("{}")))


def with_writers(text: str, data: Any) -> Text:
    writers = data.draw(
        st.lists(st.sampled_from([CLIENT, MODEL, TEMPLATE]), min_size=len(text), max_size=len(text))
    )
    return Text(text, b"".join(writers))


@settings(max_examples=300)
@given(st.data())
def test_any_expression_renders_as_in_jinja(data: Any) -> None:
    draw = data.draw
    source = make_source(draw)
    x, y, z, m = (draw(texts) for _ in range(4))
    variables = {"x": x, "y": y, "n": 3, "z": {"deep": [z]}, "m": [m, m]}
    marked = {**variables, "x": with_writers(x, data), "m": [with_writers(m, data), m]}
    wanted = reference(source, variables)
    assume("0x" not in (wanted or "").lower())  # an object's address
    for given_ in (variables, marked):
        text = ours(source, given_)
        assert text == wanted, (source, given_)
        assert text is None or len(writers_of(text)) == len(text)


GREEK = "αβγδεζηθικλμνξοπρσςτυφχψωΐΰ"


@settings(max_examples=200)
@given(st.data())
def test_what_a_client_writes_never_counts_as_the_templates(data: Any) -> None:
    source = make_source(data.draw)
    x, y, z, m = (data.draw(st.text(GREEK, max_size=8)) for _ in range(4))
    of_client = {"x": Text(x), "y": y, "n": 3, "z": {"deep": [z]}, "m": [Text(m), m]}
    of_model = {name: marked(value, MODEL) for name, value in of_client.items()}
    for variables, highest in (
        (of_client, CLIENT),
        (of_model | {"x": Text(x, MODEL * len(x))}, MODEL),
    ):
        text = ours(source, variables)
        for char, writer in zip(str.__str__(text or ""), writers_of(text or ""), strict=True):
            if not char.isascii():  # templates here are, and no client's text is
                assert bytes((writer,)) <= highest, (source, variables, text)


@pytest.mark.parametrize(
    "expression",
    [
        "'<|' + x + '|>'", "'<|' ~ x ~ '|>'", "('<|' + x + '|>') | trim", "'<| ' | trim + x + '|>'",
        "x | replace('α', '<|α|>') | replace('α', '')", "['<|', x, '|>'] | join", "f(x)", "s",
        "('<|' + x + '|>').split('_')[0]", "('__<|' + x + '|>')[2:]", "('<|' ~ x ~ '|>') | upper",
        "namespace(v='<|' + x).v + '|>'", "('<|\n' + x + '|>').splitlines() | join",
        "('a<|' + x + '|>').removeprefix('a')", "('<|' + x + '|>').partition(x) | join",
        "('<|' if x else '') ~ x ~ ('|>' if x else '')", "(['<|', x, '|>'] | map('trim')) | join",
        "'' ~ '<' * 1 ~ '|' ~ x ~ '|>'", "('<|-' ~ x ~ '|>').replace('-', '')",
        "('   <|' ~ x ~ '|>').strip()", "('<|' ~ x ~ '|>   ').strip()",
    ],
)  # fmt: skip
def test_what_a_template_writes_around_a_clients_text_is_its_own(expression: str) -> None:
    source = (
        "{% macro f(v) %}<|{{ v }}|>{% endmacro %}{% set s %}<|{{ x }}|>{% endset %}"
        "{{ " + expression + " }}"
    )
    text = ours(source, {"x": Text("αβ")})
    assert text is not None
    own = "".join(c for c, w in zip(text, writers_of(text), strict=True) if w == TEMPLATE[0])
    assert own == "<||>"
