"""`signalbox trace`: one request's timeline without a tracing backend.

`from_spans` and `from_explanation` make a `Drawing`; `terminal` and `svg` draw it.
"""
