"""Rewrites JSON schemas of any draft into those that llguidance compiles exactly."""
