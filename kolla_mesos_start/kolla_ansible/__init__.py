"""Imports what kolla-ansible would deploy: its own playbooks run, but every module is recorded.

The stages, in their order:

    facts           what is known about each host
    site            the hosts, their addresses and passwords, with the variables of these
    stand_ins       passwords and addresses that take the place of the real ones
    recording       one run of the playbooks, in which every module is the recorder, as a list of tasks
    lift            two runs with different stand-ins: each stand-in becomes its variable again
    containers      the daemons, the one-time steps and the files of each container
    clusters        daemons that are one cluster on several hosts
    graph           dependencies, from what listens at which address, and what connects to it
    emit            a directory for `kolla_mesos_ctl`: definitions, variables, launch.yml
    launch_settings what launch.yml says about a container
    emitted         the directory in memory, report.txt and imported.json
    directory       writes the directory, and keeps what the operator has changed

`importing` runs them all, `rules` reads rules.yml, and `given_files` the operator's files. What runs inside
ansible is in `plugins`: it imports nothing of this package.
"""
