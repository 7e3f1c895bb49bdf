"""For all tests."""

from hypothesis import settings

# How long an example takes is the machine's affair, not the code's.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
