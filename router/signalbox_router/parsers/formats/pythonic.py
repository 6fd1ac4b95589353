"""Calls as a list of Python's, of Llama 4 and of others without a marker; and of Olmo 3, each in a
line of its own."""

from signalbox_router.parsers.pythonic_calls import PythonicCalls

FORMATS = (
    PythonicCalls(
        name="llama4_pythonic",
        aliases=("pythonic",),
        opening=("<|python_start|>",),
        end="<|python_end|>",
        is_bare=True,
        signs=(("[func_name1(params_name1=",),),
    ),
    PythonicCalls(
        name="olmo3",
        opening=("<function_calls>",),
        end="</function_calls>",
        is_list=False,
        signs=(("<function_calls>", "</function_calls>"),),
    ),
)
