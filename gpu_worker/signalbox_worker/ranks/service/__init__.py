"""RankService, over which the ranks of a worker talk: messages, codec, servicers and clients.

`meeting` has the keys through which tensor-parallel ranks find each other.
"""
