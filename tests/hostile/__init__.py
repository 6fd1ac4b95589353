"""Hostile input against a real stack: no other stream notices, and little is left of it.

Router, scheduler and simulated workers run as processes, the router with 1,024 files; the model has
a vocabulary of 256,000 and a window of 400,000 tokens. A case is one attack. `test_cases.py` runs
each beside eight seeded streams (gRPC and HTTP) and checks that

- the answers have exactly the codes that the case states, and repeat little of what was sent,
- every stream says byte for byte what it says alone,
- the router's and its children's peak of resident memory stays under 1,000 MiB,
- the next request over each transport is served, and every block is free.

`make test-alone` adds what needs a machine to itself: the streams' longest gap is at most 250 ms
beyond the idle machine's (best of three), the second and the third repeat leave at most 50 MiB more
than the first, and without its bound each case fails.

**To add a case**, put it into the tuple `CASES` of a module of `cases/` (one for each part, such as
`unknown_fields.py`); nothing else is to be written:

    async def many_tools(target: Target) -> list[Answer]:
        request = make_chat()                      # of tests/integration/fuzzing/bad_values.py
        request.tools.extend([pb.Tool()] * 1000)
        return [
            await target.grpc("Chat", request.SerializeToString()),
            await target.post("/v1/chat/completions", {"messages": [...], "tools": [{}] * 1000}),
        ]

    Case(
        name="a-thousand-empty-tools",
        attack=many_tools,
        codes=frozenset({"INVALID_ARGUMENT", "400"}),  # all that come, and no other
        says="tools",                                  # in the message of each refusal
        unbounded={"signalbox_router.prompt.chat.conversation.MAX_TOOLS": 10**7},  # the case
        must then fail
    )

Fields need no case for their size alone: `test_inflated.py` makes every field of every message and
body long, deep, wide, repeated, slow or unfinished, and bounds the CPU time and the memory of each.

`Target` sends bytes over gRPC (`grpc`), bodies over HTTP (`post`), and has host and ports for
sockets of your own (`asyncio.open_connection(target.host, target.http_port)`). Other flags go to
`options=Options(router=("--api-key=secret",))`; each different `Options` costs a start of about ten
seconds, so few are best. Streams have no key: give options that let them in.

`unbounded` names constants by the module that *reads* them: a `from limits import MAX` copies the
value. A case whose mending is not there yet has `waits_for="..."`, and then must fail; take it out
together with the fault.
Scale an attack so that it shows its fault in a second or two: `make test-system` runs each once,
but for those with `is_long=True`, which `make test-alone` runs.
"""
