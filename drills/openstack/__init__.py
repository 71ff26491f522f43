"""A whole OpenStack on several hosts, and through faults: `bin/test drills/openstack`.

Each of these starts takes half a minute of all processors, so a plain `bin/test` leaves them out.
"""
