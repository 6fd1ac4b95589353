"""The constraints of structured outputs, as all services exchange them, and how to compile them."""
