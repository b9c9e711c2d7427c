"""Runs SQLAlchemy's own suite for dialects separately, as its README.dialects asks."""

import pytest

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403
