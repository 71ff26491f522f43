"""Imports what kolla-ansible would deploy: its own playbooks run, but every module is recorded.

The stages, in their order:

    environment     which ansible and which kolla-ansible are installed
    facts           what is known about each host
    stand_ins       passwords and addresses that take the place of the real ones
    playbooks       a copy of the playbooks, in which every module is the recorder
    recording       one run of them, as a list of tasks
    lift            two runs with different stand-ins: each stand-in becomes its variable again
    containers      the daemons, the one-time steps and the files of each container
    clusters        daemons that are one cluster on several hosts
    listeners       which daemon listens at which address, for the graph
    clients         what connects to what, from the configuration
    graph           dependencies
    emit            a directory for `kolla_mesos_ctl`: definitions, variables, launch.yml
    service         the files of one service, and its values for single hosts, for which `hosts` merges texts
    launch_settings what launch.yml says about a container
    report          report.txt and imported.json
    directory       writes the directory, and keeps what the operator has changed

`importing` runs them all, `emitted` has what is passed to and from `emit`, `rules` reads rules.yml, and
`given_files` the operator's files. What runs inside ansible is in `plugins`: it imports nothing of this
package.
"""
