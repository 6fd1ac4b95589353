"""The ops of a model step: contracts, plain Torch reference, dispatch by device.

Ours alone: imports nothing of the other packages.
"""
