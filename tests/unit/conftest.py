"""The settings of unit tests."""

from __future__ import annotations

from functools import partial

import pytest

from haclient import settings
from haclient.failover import Policy

PATIENT_S = 10.0


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait for servers that share a process, or a busy machine, with them.

    A server that answers late for this reason is not left, unless the test sets its own times.
    """
    patient = partial(
        Policy, connect_timeout_s=PATIENT_S, silence_s=PATIENT_S, probe_timeout_s=PATIENT_S
    )
    monkeypatch.setattr(settings, "Policy", patient)


@pytest.fixture
def impatient_clients(patient_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give clients their usual times, for tests of servers that do not answer."""
    monkeypatch.setattr(settings, "Policy", Policy)
