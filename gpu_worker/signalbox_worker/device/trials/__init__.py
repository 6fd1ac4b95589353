"""Trials of code for a device that may be wrong there, in a process of their own."""
