"""Imports what at least two of router, scheduler and worker need, before they are forked.

None of these modules starts a thread or keeps a file open. (The threads of numpy's BLAS end before
a fork, and start again when they are needed.)
"""

# ruff: noqa: F401

import contract.structured_output.grammar
import contract.updates
import protos.scheduler.v1.scheduler_pb2_grpc
import protos.worker.v1.worker_pb2_grpc
import rpc.metrics.serving_metrics
import rpc.telemetry.tracing
import rpc.transport.channel
import rpc.transport.reflection
import rpc.transport.server
import rpc.transport.shutdown
