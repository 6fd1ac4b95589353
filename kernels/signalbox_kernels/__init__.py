"""The ops of a model step: contracts, plain Torch reference, dispatch by device.

It imports nothing of the other packages.
"""
