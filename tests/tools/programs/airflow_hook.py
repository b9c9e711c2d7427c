"""Airflow's hook for Livy: ``python airflow_hook.py FILE TABLE``; the connection is ``ring``."""

from __future__ import annotations

import sys
import time

from airflow.exceptions import AirflowException
from airflow.providers.apache.livy.hooks.livy import BatchState, LivyHook

file, table = sys.argv[1:]
hook = LivyHook("ring")
assert hook.test_connection() == (True, "Connection successfully tested")
batch = hook.post_batch(file=file, args=[table, "for ever"], name="endless", driver_memory="512m")
assert hook.get_batch(batch)["name"] == "endless"
hook.delete_batch(batch)
while (state := hook.get_batch_state(batch)) not in hook.TERMINAL_STATES:
    time.sleep(0.5)
assert state is BatchState.KILLED, state
hook.dump_batch_logs(batch)
try:
    hook.post_batch(file="no_such_file.py")
except AirflowException as error:
    print(error)
else:
    raise AssertionError("it was not refused")
