"""The servers and libraries that we are measured beside, and ourselves, behind one interface.

A server is a `ServerProcess`: how it is started in its best known setting, how one request is
streamed. A library is an `OfflineProcess`: a script of benchmarks/peers/scripts that the peer's own
interpreter runs. All of them live in environments of their own in one folder, which is an argument;
nothing of a peer is imported here.
"""
