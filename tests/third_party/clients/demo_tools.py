"""What the scripted model says to QUESTION, and where it is served."""

import os

HTTP = os.environ.get("SIGNALBOX_SCRIPTED_HTTP", "")
"""URL of the HTTP API, without a path."""
MODEL = "scripted"

TOOL, DESCRIPTION = "weather", "Returns the weather of a city."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = "How is the weather in Seoul and in Busan?"
THOUGHT = "Two cities, two calls."
CITIES = ["Seoul", "Busan"]
"""The model calls TOOL once for each, at once."""
WEATHER = {"Seoul": "It rains in Seoul.", "Busan": "The sun shines in Busan."}
"""Results of the calls, which the model repeats: its answer is ANSWER."""
ANSWER = " ".join(WEATHER.values())
FORM_QUESTION = "Which city has rain? Answer as a form."
"""The model answers it with FORM, as a text, or as a call of the one tool that is offered."""
FORM = {"city": CITIES[0]}
