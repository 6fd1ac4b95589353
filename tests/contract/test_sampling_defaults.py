"""Default sampling parameters travel as they are."""

from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract import sampling_defaults
from signalbox_contract.sampling_defaults import (
    DefaultParams,
    SamplingDefaults,
)
from signalbox_protos.common.v1 import common_pb2

UNITS = st.none() | st.floats(0, 1, width=32, exclude_min=True)
PARAMS = st.builds(
    DefaultParams,
    temperature=st.none() | st.floats(0, 2, width=32),
    top_p=UNITS,
    top_k=st.none() | st.integers(0, 2**32 - 1),
    min_p=UNITS,
    repetition_penalty=UNITS,
    max_tokens=st.none() | st.integers(1, 2**32 - 1),
)


@given(model=PARAMS, override=PARAMS)
def test_the_wire_keeps_what_is_set_and_what_is_not(
    model: DefaultParams, override: DefaultParams
) -> None:
    defaults = SamplingDefaults(model=model, override=override)
    sent = sampling_defaults.encode(defaults).SerializeToString()
    read = sampling_defaults.decode(common_pb2.SamplingDefaults.FromString(sent))
    assert read == defaults
    for name, value in read.fields().items():  # the override comes first
        from_override = getattr(override, name)
        assert value == (getattr(model, name) if from_override is None else from_override)
