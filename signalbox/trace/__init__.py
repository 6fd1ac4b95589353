"""`signalbox trace`: one request's timeline without a tracing backend.

`from_spans` makes a `Drawing`; `terminal` and `svg` draw it.
"""
