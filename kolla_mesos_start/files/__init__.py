"""Config files in the container, written whole or not at all. Never here: what they hold, or why."""

from kolla_mesos_start.files.content import Content as Content
from kolla_mesos_start.files.placement import place as place
from kolla_mesos_start.files.placement import plan as plan
