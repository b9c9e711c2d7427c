"""Runs SQLAlchemy's own suite for dialects, as its README.dialects says: a run of its own."""

import pytest

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403
