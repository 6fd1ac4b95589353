"""The KV cache: pools of blocks on the device and in RAM, copies between them, how many fit."""
