"""`signalbox trace`: one request's timeline without a tracing backend.

`span_file` and `explained` each make a `Drawing` of what they read; `terminal` and `svg` draw it.
"""
