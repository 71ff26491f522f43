"""Tells the importer what ansible does: a JSON object in each line of standard output."""

from __future__ import annotations

import json
import sys

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
    name: progress
    type: stdout
    short_description: one JSON object per line
    description:
        - Written for the importer of kolla_mesos_start.
    version_added: historical
"""


class CallbackModule(CallbackBase):
    """Each play, and each failure that ends a host's play."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "progress"

    def _say(self, **what):
        sys.stdout.write(json.dumps(what, default=str) + "\n")
        sys.stdout.flush()

    def v2_playbook_on_play_start(self, play):
        """A play begins."""
        self._say(play=play.get_name())

    def v2_runner_on_failed(self, result, ignore_errors=False):
        """A task has failed on a host."""
        self._fail(result, ignore_errors)

    def v2_runner_on_unreachable(self, result):
        """A host could not be reached."""
        self._fail(result, False)

    def _fail(self, result, is_ignored):
        if is_ignored:
            return
        # Names of ansible-core 2.20 and of older ones.
        task = getattr(result, "task", None) or result._task
        host = getattr(result, "host", None) or result._host
        values = getattr(result, "result", None) or result._result
        # The items of a loop say more than the task; not every version marks what failed.
        items = [each for each in values.get("results", ()) if each.get("failed") or each.get("unreachable")]
        messages = [str(each["msg"]) for each in (*items, values) if each.get("msg")]
        message = messages[0] if messages else "no reason given"
        self._say(
            failed={
                "host": host.get_name(),
                "task": task.get_name(),
                "module": task.action,
                "place": task.get_path() or "",
                "message": message,
            }
        )
