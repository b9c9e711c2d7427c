"""The suite's tests."""

from sqlalchemy.testing.suite import *  # noqa: F403
