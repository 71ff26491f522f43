"""Imports what kolla-ansible would deploy: its own playbooks run, but every module is recorded.

The stages, one module each:

    environment     which ansible and which kolla-ansible are installed
    facts           what is known about each host
    stand_ins       passwords and addresses that take the place of the real ones
    playbooks       a copy of the playbooks, in which every module is the recorder
    recording       one run of them, as a list of tasks
    lift            two runs with different stand-ins: each stand-in becomes its variable again
    containers      the daemons, the one-time steps and the files of each container
    clients         what connects to what, from the configuration
    graph           dependencies
    emit            a directory for `kolla_mesos_ctl`

What runs inside ansible is in `plugins`: it imports nothing of this package.
"""
