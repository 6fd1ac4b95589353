"""Jinja with the same output byte for byte, which records the writer of each character.

Strings of a template's source become `Text` of the template where the compiled code uses them; `~`,
macros and blocks join their parts with `provenance.concat`. Filters that call methods of their
input need no change. Like `template_sandbox`, the module imports nothing of ours but `provenance`.
"""

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst
from jinja2.filters import FILTERS, do_indent, make_attrgetter, sync_do_join
from jinja2.nodes import EvalContext
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import pass_eval_context

from signalbox_router.prompt.chat import provenance
from signalbox_router.prompt.chat.provenance import TEMPLATE, Text, has_text, text_of, uniform


class _CodeGenerator(CodeGenerator):
    """Generates code whose strings are `Text`, except where a template enables autoescaping."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({super()._output_const_repr(group)})"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.text(")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if type(value) in (str, list, tuple, dict):
            self.write(f"environment.literal({value!r})")
        else:
            super().visit_Const(node, frame)

    @optimizeconst
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concat((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")


class ProvenanceEnvironment(SandboxedEnvironment):
    """Renders templates to pieces that are `Text`, or `Markup` where a template escapes.

    A template may change lists and dictionaries, as that of Kimi K2 does, which transformers
    refuses: those that it sees are its own and copies of one conversation.
    """

    code_generator_class = _CodeGenerator
    concat = staticmethod(provenance.concat)
    text = staticmethod(text_of)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters = {name: _with_provenance(one) for name, one in FILTERS.items()}
        self.filters |= {"join": _join, "indent": _indent, "tojson": _to_json}

    @staticmethod
    def literal(value: Any) -> Any:
        """Returns a constant of the template's source."""
        if type(value) is str:
            return provenance.written_by(TEMPLATE, value)
        if type(value) in (list, tuple):
            return type(value)(map(ProvenanceEnvironment.literal, value))
        return provenance.marked(value, TEMPLATE)


def _with_provenance(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter; a plain string that it returns is written by the least trusted of its
    inputs."""
    num_passed = 1 if getattr(filter_, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(filter_)
    def call(*args: Any, **options: Any) -> Any:
        value = filter_(*args, **options)
        return _of(value, *args[num_passed:], *options.values())

    return call


def _of(value: Any, *inputs: object) -> Any:
    """Returns a filter's value as a text of its inputs.

    It stays plain if they are plain. So are all values while a template is compiled, when Jinja
    computes constants, as it does for plain strings.
    """
    if type(value) is not str or not has_text(*inputs):
        return value
    return uniform(value, *inputs)


@pass_eval_context
def _join(
    context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> Any:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    values = list(value)
    if context.autoescape or not has_text(values, d):
        return sync_do_join(context, values, d)
    return text_of(d).join(map(text_of, values))


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    value = do_indent(s, width, first, blank)
    return _of(provenance.plain(value) if isinstance(value, Text) else value, s, width)


def _to_json(
    value: object,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Any:
    """Returns JSON without escaping HTML, as Jinja's own filter does."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _of(text, value)
