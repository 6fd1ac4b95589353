"""What the documentation promised under the old import names is found there for one release."""

import sys

import pytest

RENAMED = {
    "gpu_worker.attention": "signalbox_worker.attention",
    "gpu_worker.layers": "signalbox_worker.layers",
    "gpu_worker.models": "signalbox_worker.models",
    "gpu_worker.models.llama": "signalbox_worker.models.llama",
    "scheduler_svc.queue.policies": "signalbox_scheduler.queue.policies",
    "protos.inference.v1": "signalbox_protos.inference.v1",
    "protos.inference.v1.inference_pb2": "signalbox_protos.inference.v1.inference_pb2",
    "protos.inference.v1.inference_pb2_grpc": "signalbox_protos.inference.v1.inference_pb2_grpc",
}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_the_module_of_the_new_one_and_says_so(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, renamed = old.partition(".")[0], new.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.warns(DeprecationWarning, match=f"from {renamed};.* {top} ") as warned:
        __import__(old)
    assert [one.filename for one in warned] == [__file__]
    __import__(new)
    assert sys.modules[old] is sys.modules[new]
