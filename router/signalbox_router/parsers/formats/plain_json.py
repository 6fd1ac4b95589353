"""Calls in JSON without markers, of models whose format is not known."""

from signalbox_router.parsers.json_calls import JsonCalls

FORMATS = (JsonCalls(name="json", is_bare=True, separators=",;", is_generic=True),)
