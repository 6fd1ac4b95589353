"""The old name of `signalbox_protos`, for one release: of it what the documentation promised."""

import sys
import warnings

from signalbox_protos import inference
from signalbox_protos.inference import v1
from signalbox_protos.inference.v1 import inference_pb2, inference_pb2_grpc

warnings.warn(
    "import from signalbox_protos; its old name protos goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules.update(
    {
        f"{__name__}.inference": inference,
        f"{__name__}.inference.v1": v1,
        f"{__name__}.inference.v1.inference_pb2": inference_pb2,
        f"{__name__}.inference.v1.inference_pb2_grpc": inference_pb2_grpc,
    }
)
